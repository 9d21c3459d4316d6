"""What packed pages cost in llama.cpp's own programs: predictions and memory. Minutes, so this belongs to `make test-all`."""

import json
import os
import re
import sys

import pytest

from test_engine import fetched
from test_engine_cli import quire
from test_engine_fidelity import LICENCE
from test_plugin_tools import ROOT, Server, all_packed, pytestmark, run, tools  # noqa: F401

sys.path.insert(0, str(ROOT / "bench"))
from memory_trace import fields  # noqa: E402

CONTEXT, CHUNKS = 1024, 2
TEXT = ["-f", LICENCE, "-c", CONTEXT, "--chunks", CHUNKS, "-t", os.cpu_count()]
PRESETS = ["k8v8", "k8v4", "k4v4"]  # in the order of what they cost


def predictions(tools, model, kv, folder, *options, **more):
    return run([tools / "llama-perplexity", "-m", model, *TEXT, "--kl-divergence-base", folder / "base", *options], kv, folder,
               **more)


def divergence(done):
    return float(re.search(r"Mean +KLD: +(-?[\d.]+)", done.stdout + done.stderr)[1])


@pytest.mark.skipif(not LICENCE.exists(), reason="no licence text on this machine")
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_divergence_is_that_of_quire_s_own_engine(name, tools, tmp_path):
    """Each from its own cache in f32. Weights are in F32 as well: ggml rounds activations where they are shorter, which alone
    costs more than some of these codecs."""
    model, calibration = tmp_path / "f32.gguf", tmp_path / "calibration"
    run([tools / "llama-quantize", "--allow-requantize", fetched(name), model, "F32"], None, tmp_path)
    quire("probe", "-m", model, "--calibration", calibration)
    rows = json.loads(quire("eval", "kld", "-m", model, "--text", LICENCE, "--ctx", CONTEXT, "--chunks", CHUNKS, "--base-raw",
                            "f32", "--kv", ",".join(PRESETS), "-t", os.cpu_count(), "--json").stdout)
    own = {row["kv"]: row["kld_mean"] for row in rows}
    assert own.keys() == set(PRESETS)

    predictions(tools, model, None, tmp_path, "-fa", "off", "-ctk", "f32", "-ctv", "f32")
    found = {}
    for kv in PRESETS:
        done = predictions(tools, model, kv, tmp_path, "--kl-divergence", QUIRE_CALIBRATION=str(calibration))
        all_packed(done)
        found[kv] = divergence(done)
    # llama-perplexity prints six digits: the last one is allowed to differ.
    assert not {kv: (found[kv], own[kv]) for kv in PRESETS if found[kv] > 1.1 * own[kv] + 1e-6}
    assert 0 < found["k8v8"] < found["k8v4"] < found["k4v4"]  # and none of them is inert


MIB = 1 << 20
TOKENS = 8100  # of the 8192 that SmolLM2 was trained for
VALUES = 30 * 2 * 3 * 64  # of a token: layers, K and V, heads, dimensions
BITS = {"k8v8": 8.375, "k8v4": 6.375, "k4v4": 4.375}  # of a value: codes; scales and zeros of 64 values, in f16
OPEN = 64 * VALUES * 2  # the page under construction, in f16
BUFFERS = (5 + 2 * os.cpu_count()) * MIB  # that page, the rows of a step, what as many threads as processors compute with


def memory_of(tools, model, kv, folder):
    """-> bytes of a server's own memory after a long prompt, and the report of its end."""
    folder.mkdir()
    with Server(tools, model, kv, folder, "-c", 8192, "-np", 1, "-fa", "on", "--cache-ram", 0, "-t", 2) as server:
        done = server.ask("/completion", prompt=" a" * TOKENS, n_predict=2, temperature=0)
        assert TOKENS <= done["tokens_evaluated"] <= TOKENS + 1
        found = fields(server.process.pid)["RssAnon"]
    return found, server.report()


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="not here: memory is read from Linux's /proc")
@pytest.mark.skipif(os.sysconf("SC_PAGE_SIZE") > 4096, reason="not here: the system gives memory in larger pages than 4 KiB")
def test_memory_is_that_of_the_pages(tools, tmp_path):
    """At the longest context, beside the same server with its own cache in f16: no more than 5 % above what packed pages and
    the open one need, whatever else the plug-in computes with. QUIRE_KV_BYTES is told a price that covers it all. No order of
    channels is given: pages that wait for one are raw at first, and their memory must come back."""
    model = fetched("smollm2")
    plain, _ = memory_of(tools, model, None, tmp_path / "plain")
    rest = plain - 8192 * VALUES * 2
    for kv in PRESETS:
        taken, report = memory_of(tools, model, kv, tmp_path / kv)
        all_packed(report)
        (price,) = (float(most) * MIB for most in re.findall(r"up to ([\d.]+) MiB", report.stderr))
        pages = 8192 * VALUES * BITS[kv] / 8
        print(f"{kv}: pages {pages / MIB:.1f}, with the open one {(pages + OPEN) / MIB:.1f}, price {price / MIB:.1f}, "
              f"taken {(taken - rest) / MIB:.1f} MiB")
        assert pages < price < pages + BUFFERS, kv
        assert 0.95 * pages < taken - rest < 1.05 * (pages + OPEN), kv
