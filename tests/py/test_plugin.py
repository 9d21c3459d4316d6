"""libggml-quire.so in programs on libllama: contexts with the plug-in beside contexts without it."""

import os
import pathlib
import subprocess

import pytest

import engine_models as models

PROGRAMS = os.environ.get("QUIRE_PLUGIN_PROGRAMS", "")
PLUGIN = os.environ.get("QUIRE_PLUGIN", "")
pytestmark = pytest.mark.skipif(not PROGRAMS, reason="not here: the plug-in's test programs are not built")


def run(program, *arguments, kv="off", plugin=PLUGIN, good=True, **environment):
    environment = {**os.environ, "GGML_BACKEND_PATH": plugin, "QUIRE_KV": kv, "QUIRE_STATS": "1", **environment}
    done = subprocess.run([f"{PROGRAMS}/plugin_{program}", *map(str, arguments)], env=environment, capture_output=True,
                          text=True, errors="replace")
    assert (done.returncode == 0) == good, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made, folder = {}, tmp_path_factory.mktemp("models")

    def make(arch):
        if arch not in made:
            made[arch] = models.make(folder / f"{arch}.gguf", arch)
        return made[arch]

    return make


# ---------------------------------------------------------------- passing everything to ggml-cpu

SINGLE = ["prefill", "decode", "take_back", "holes", "cleared", "states", "aborted"]
SEVERAL = ["batches", "copies", "states"]


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3", "gemma4"])
def test_delegation_changes_no_bit(arch, model):
    """And the graph stays in one piece."""
    run("compare", model(arch), "--splits", "1", *SINGLE)


@pytest.mark.parametrize("options", [["--unified"], ["--threads", "2"], ["--ubatch", "33", "--unified"]], ids=" ".join)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_delegation_of_several_sequences_changes_no_bit(arch, options, model):
    run("compare", model(arch), "--seqs", "3", *options, *SEVERAL)


@pytest.mark.parametrize("options", [["--no-flash"], ["--type", "q8_0"]], ids=" ".join)
def test_delegation_of_other_caches_changes_no_bit(options, model):
    run("compare", model("llama"), "--splits", "1", *options, "prefill", "decode", "states")


def test_delegation_of_a_context_shift_changes_no_bit(model):
    run("compare", model("llama"), "--splits", "1", "shift")


# ---------------------------------------------------------------- all of llama.cpp's architectures

@pytest.mark.parametrize("kv", ["off"])
def test_llama_cpp_s_own_test_of_architectures(kv):
    done = run("archs", "-b", "QUIRE0", "-s", "1", kv=kv)
    assert "Summary: all " in done.stdout, done.stdout


# ---------------------------------------------------------------- stepping aside

def lines_of_quire(done):
    return [line for line in done.stderr.splitlines() if line.startswith("quire: ")]


def test_another_ggml_is_refused_in_one_line(model):
    other = str(pathlib.Path(PROGRAMS) / "libggml-quire-other.so")
    done = run("compare", model("llama"), "prefill", plugin=other, good=False)
    (line,) = lines_of_quire(done)
    assert line.startswith("quire: built for ggml 0.0.1, and this program has ")
    assert line.endswith("; going on without Quire")
    assert "brought no device QUIRE0" in done.stderr  # the program went on


@pytest.mark.parametrize("value", ["many", "-1", "5X", "1GB", "99999999999999999999"])
def test_a_bad_number_of_bytes_is_refused_in_one_line(value, model):
    done = run("compare", model("llama"), "prefill", good=False, QUIRE_KV_BYTES=value)
    (line,) = lines_of_quire(done)
    assert f"QUIRE_KV_BYTES={value} is not a number of bytes" in line


@pytest.mark.parametrize("value", ["0", "65536", "512M", "2G"])
def test_a_number_of_bytes(value, model):
    run("compare", model("llama"), "prefill", QUIRE_KV_BYTES=value)
