"""quire probe and --kv auto: what a model's K and V are like, and codecs chosen by it, on models made to show it."""

import json
import os
import subprocess

import numpy as np
import pytest

import engine_models as models
from test_engine import fetched
from test_engine_cli import PROGRAM, pytestmark, quire  # noqa: F401
from test_engine_fidelity import LICENCE

BIASED = 1  # the layer of the biased model that is


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Reports are kept between the tests here, and nowhere else."""
    path = tmp_path_factory.mktemp("cache")
    before = os.environ.get("QUIRE_CACHE")
    os.environ["QUIRE_CACHE"] = str(path)
    yield path
    os.environ.pop("QUIRE_CACHE") if before is None else os.environ.update(QUIRE_CACHE=before)


def times(factor):
    return lambda weight: weight * factor


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return models.make(tmp_path_factory.mktemp("models") / "llama.gguf", "llama")


@pytest.fixture(scope="module")
def biased(tmp_path_factory):
    """As Qwen2 is: a few slow channels of K in one layer, far from 0. Logits calmer than the maker's, to be a text's."""
    def bias(layer):
        def change(b):
            heads = np.zeros((2, 32), np.float32)
            heads[:, 12:16] = 80 if layer == BIASED else 0
            return heads.reshape(b.shape)
        return change
    spoil = {f"blk.{i}.attn_k.bias": bias(i) for i in range(3)}
    return models.make(tmp_path_factory.mktemp("models") / "biased.gguf", "qwen2",
                       spoil={**spoil, "output_norm.weight": times(0.1)})


@pytest.fixture(scope="module")
def sliding(tmp_path_factory):
    return models.make(tmp_path_factory.mktemp("models") / "sliding.gguf", "gemma3")


@pytest.fixture(scope="module")
def touchy(tmp_path_factory):
    """Layer 1 writes thirty times what the others do."""
    return models.make(tmp_path_factory.mktemp("models") / "touchy.gguf", "llama",
                       spoil={f"blk.{i}.attn_output.weight": times(3.0 if i == 1 else 0.1) for i in range(3)})


def probe(model, *more):
    return json.loads(quire("probe", "-m", model, "--json", "-t", 1, *more).stdout)


def kld(model, kv, *more):
    found = json.loads(quire("eval", "kld", "-m", model, "--weights", "f32", "--text", LICENCE, "--ctx", 384, "--chunks", 1,
                             "-t", 1, "--kv", kv, "--json", *more).stdout)
    return found["kld_mean"] if isinstance(found, dict) else {row["kv"]: row["kld_mean"] for row in found}


def bits(pair):
    return sum(int(codec[2]) if codec != "raw" else 16 for codec in pair.split(":"))


def test_figures_of_a_plain_model(llama):
    found = probe(llama)
    assert found["n_layers"] == 3 and found["tokens"] == 512 and found["scored"] == 384
    for layer in found["layers"]:  # random weights: normal, without bias, outliers or sinks
        assert layer["k_bias"] < 3 and layer["outliers"] == 0 and layer["k_outlier"] < 3
        assert 2.5 < layer["k_kurtosis"] < 3.5 and 2.5 < layer["v_kurtosis"] < 3.5
        assert 0 < layer["sink"] < 0.2 and 0.5 < layer["k_first"] < 2
        assert layer["kv_ratio"] == pytest.approx(layer["k_norm"] / layer["v_norm"])
    assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1)
    rungs = found["rungs"]
    assert rungs[0]["kv"] == "raw:raw" and rungs[0]["kld"] == 0
    assert all(a["bits"] > b["bits"] and a["kld"] < b["kld"] for a, b in zip(rungs, rungs[1:]))


def test_a_large_bias_is_seen_where_it_is(biased):
    found = probe(biased)
    for layer in found["layers"]:
        assert layer["k_bias"] > 40 if layer["layer"] == BIASED else layer["k_bias"] < 3
    assert [w for w in found["words"] if w.startswith(f"layer {BIASED}: ") and "bias" in w]
    losses = kld(biased, "auto:0.01,k4v4,tq4,q4_0")
    assert losses["auto:0.01"] <= 0.01
    assert losses["k4v4"] < losses["q4_0"] / 3, "a zero point for each channel takes the bias away"
    assert losses["tq4"] < losses["q4_0"] / 3, "and so does the mean of a page"


def test_a_sink_is_seen_where_it_is(tmp_path):
    """In layer 0, a channel that does not turn: all queries ask for it, and the key of <s>, which begins a text, has it."""
    maker = models.Maker(tmp_path / "sink.gguf", "qwen2")
    maker.fill()
    start = maker.tensors["token_embd.weight"][1] * maker.tensors["blk.0.attn_norm.weight"]
    slowest, dim = 15, 32
    for head in range(2):
        maker.tensors["blk.0.attn_k.weight"][head * dim + slowest] = 0.5 * start / np.linalg.norm(start)
        maker.tensors["blk.0.attn_k.bias"][head * dim + slowest] = 0
    for head in range(4):
        maker.tensors["blk.0.attn_q.bias"][head * dim + slowest] = 30
    maker.write()
    layers = probe(tmp_path / "sink.gguf")["layers"]
    assert layers[0]["sink"] > 0.8 and layers[1]["sink"] < 0.2 and layers[2]["sink"] < 0.2


def test_sliding_layers_stay_raw_until_bytes_count(sliding):
    found = probe(sliding, "--kv-budget", "0.01,512K,360K", "--ctx", 4096)
    windows = [layer["window"] for layer in found["layers"]]
    assert windows == [75, 75, 75, 75, 75, 0, 75]
    by_loss, roomy, tight = (choice["layers"] for choice in found["choices"])
    assert all((pair == "raw:raw") == (window > 0) for pair, window in zip(by_loss, windows))
    assert any(pair != "raw:raw" for pair, window in zip(tight, windows) if window)
    assert found["choices"][2]["bytes"] <= 360 << 10
    assert any("sliding window" in word for word in found["words"])
    same = probe(sliding, "--kv-budget", "0.01", "--kv-windowed", "same")["choices"][0]
    assert same["bytes"] < found["choices"][0]["bytes"] and same["kld"] <= 0.01
    assert any(pair != "raw:raw" for pair, window in zip(same["layers"], windows) if window)


def test_layers_that_share_a_cache(tmp_path):
    found = probe(models.make(tmp_path / "model.gguf", "gemma4"))
    assert [layer["shares"] for layer in found["layers"]] == [-1] * 5 + [3] * 4
    assert found["choices"][0]["layers"][5:] == [None] * 4
    assert all(layer["sink"] > 0 for layer in found["layers"])


def test_the_layer_that_matters_gets_the_bits(touchy):
    found = probe(touchy, "--kv-budget", "0.001,740K", "--ctx", 2048)
    assert found["layers"][1]["share"] > 0.9
    for choice in found["choices"]:
        given = [bits(pair) for pair in choice["layers"]]
        assert given[1] > given[0] and given[1] > given[2]
    losses = kld(touchy, "auto:0.001,k4v4")
    assert losses["auto:0.001"] < 0.002 < losses["k4v4"]


@pytest.mark.parametrize("name", ["llama", "sliding", "biased"])
@pytest.mark.parametrize("budget", ["auto:0.01", "auto:0.05", "auto:400K"])
def test_the_arguments_are_what_auto_does(name, budget, request):
    """What is printed, typed in again: the same cache, to the last bit of the KLD."""
    model = request.getfixturevalue(name)
    choice = probe(model, "--kv-budget", budget[5:], "--ctx", 384)["choices"][0]
    assert kld(model, *typed(choice)) == kld(model, budget)


def typed(choice):
    """--kv and what goes with it, as a user would type it."""
    values = {option: choice[option.replace("-", "_")] for option in ("kv-windowed", "kv-layers", "sinks")}
    return [choice["kv"]] + [word for option, value in values.items() if value is not None for word in (f"--{option}", value)]


def test_sinks_come_with_the_first_packed_layer(tmp_path):
    """A little less than raw, the global layer touchy: one with a window is packed, and --kv none would give it no sinks."""
    model = models.make(tmp_path / "sliding.gguf", "gemma3",
                        spoil={f"blk.{i}.post_attention_norm.weight": times(3.0 if i == 5 else 0.1) for i in range(7)})
    everything = probe(model, "--kv-budget", "1G", "--ctx", 384)["choices"][0]
    assert everything["kv"] == "none" and everything["sinks"] is None
    budget = f"{everything['raw_bytes'] - 1}"
    choice = probe(model, "--kv-budget", budget, "--ctx", 384)["choices"][0]
    assert choice["kv"] == "none" and choice["kv_windowed"] is None and choice["kv_layers"] and choice["sinks"] == 4
    assert kld(model, *typed(choice)) == kld(model, f"auto:{budget}")


@pytest.mark.parametrize("name, budget, tokens, more", [
    ("llama", "auto:900K", 2000, ()), ("sliding", "auto:400K", 2000, ()),
    ("llama", "auto:0.01", 640, ()), ("sliding", "auto", 1025, ()),
    ("llama", "auto:1e-9", 2000, ("--max-kv-size", 256)), ("llama", "auto:0.01", 2000, ("--max-kv-size", 256, "--keep", 70)),
])
def test_bytes_are_those_of_the_cache(name, budget, tokens, more, request):
    model = request.getfixturevalue(name)
    done = quire("bench", "model", "-m", model, "--kv", budget, "--depth", tokens - 1, "--gen", 1, "--prompt", 0, "--ctx", tokens,
                 "-t", 1, "--json", *more)
    held = json.loads(done.stdout)["kv_bytes"]
    predicted = probe(model, "--kv-budget", budget[5:] or "0.002", "--ctx", tokens, *more)["choices"][0]["bytes"]
    assert 0.8 * predicted < held <= predicted
    assert budget[5:].endswith("K") is False or held <= int(budget[5:-1]) << 10


def test_raw_layers_beside_packed_ones(llama):
    """They share pages with those: their sinks and the rows of the page sealed last are held, and counted, too."""
    common, raw = ("--ctx", 700), probe(llama, "--kv-budget", "1G", "--ctx", 700)["choices"][0]["raw_bytes"]
    budget = int(0.95 * raw)
    choice = probe(llama, "--kv-budget", budget, *common)["choices"][0]
    assert len({pair == "raw:raw" for pair in choice["layers"]}) == 2
    done = quire("bench", "model", "-m", llama, "--kv", f"auto:{budget}", "--depth", 699, "--gen", 1, "--prompt", 0, *common, "-t", 1,
                 "--json")
    assert 0.8 * choice["bytes"] < json.loads(done.stdout)["kv_bytes"] <= choice["bytes"] <= budget
    exact = probe(llama, "--kv-budget", raw, *common)["choices"][0]  # all of it fits
    assert exact["kv"] == "none" and exact["bytes"] == raw


def test_a_report_is_made_once_and_is_the_same_everywhere(tmp_path):
    model = models.make(tmp_path / "model.gguf", "qwen3")

    def report(place, *more):
        env = {**os.environ, "QUIRE_CACHE": str(tmp_path / place)}
        text = quire("probe", "-m", model, "-t", 1, *more, env=env).stdout
        return text, {file: file.read_bytes() for file in (tmp_path / place / "orders").glob("*.report")}

    text, kept = report("one")
    (file,) = kept
    other = report("two", "-t", 2)
    assert other[0] == text and list(other[1].values()) == list(kept.values()), "threads change nothing"
    before = file.stat().st_mtime_ns
    assert report("one") == (text, kept) and file.stat().st_mtime_ns == before, "a second one is read"
    env = {**os.environ, "QUIRE_CACHE": str(tmp_path / "one")}
    quire("run", "-m", model, "-p", "abc", "-n", 2, "-t", 1, "--kv", "auto", env=env)  # other arithmetic, the same report
    assert file.stat().st_mtime_ns == before
    file.write_bytes(kept[file][:-1])
    assert report("one") == (text, kept), "a damaged one is made again"
    assert report("one", "--again") == (text, kept) and file.stat().st_mtime_ns != before
    three = {**os.environ, "QUIRE_CACHE": str(tmp_path / "three")}
    quire("run", "-m", model, "-p", "abc", "-n", 2, "-t", 1, "--kv", "auto", "--weights", "f32", env=three)
    assert [f.read_bytes() for f in (tmp_path / "three" / "orders").glob("*.report")] == list(kept.values())


def test_run_says_what_it_chose(llama):
    arguments = ("run", "-m", llama, "-p", "abc", "-n", 4, "-t", 1, "--temp", 0, "--kv", "auto:0.002", "--ctx", 2000)
    said = quire(*arguments)
    assert "auto:0.002: --kv k8v8 --kv-layers " in said.stderr and "2000 tokens" in said.stderr and "predicted" in said.stderr
    quiet = quire(*arguments, "--quiet")
    assert quiet.stdout == said.stdout and quiet.stderr == ""
    assert json.loads(quire(*arguments, "--json").stderr)["kv"] == "auto:0.002"


def test_the_picture(sliding):
    text = quire("probe", "-m", sliding, "-t", 1).stdout
    for word in ("kurtosis", "########################", "km4:vt4", "sliding window", "bits by layer", "--kv "):
        assert word in text


@pytest.mark.parametrize("arguments, said", [
    (("run", "-p", "x", "--kv", "auto:"), "allowed after auto"),
    (("run", "-p", "x", "--kv", "auto:much"), "allowed after auto"),
    (("run", "-p", "x", "--kv", "auto:0"), "allowed after auto"),
    (("run", "-p", "x", "--kv", "auto:-0.1"), "allowed after auto"),
    (("run", "-p", "x", "--kv", "auto:0.5M"), "allowed after auto"),
    (("run", "-p", "x", "--kv", "auto:nan"), "allowed after auto"),
    (("run", "-p", "x", "--kv", "autos"), "autos"),
    (("run", "-p", "x", "--kv", "auto:1"), "needs at least"),
    (("run", "-p", "x", "--kv", "auto:1K", "--ctx", "500"), "needs at least"),
    (("run", "-p", "x", "--kv", "auto", "--kv-layers", "0=none"), "--kv-layers cannot be used"),
    (("run", "-p", "x", "--kv", "auto", "--kv-windowed", "k8v4"), "--kv-windowed cannot be"),
    (("eval", "agree", "--kv", "k8v4,auto:x"), "auto:x"),
    (("probe", "--kv-budget", "0.01,lots"), "'lots'"),
    (("probe", "--kv-budget", "1K"), "needs at least"),
    (("probe", "--kv-windowed", "k8v4"), "--kv-windowed cannot be"),
])
def test_errors_say_what_is_wrong(llama, arguments, said):
    done = subprocess.run([PROGRAM, *arguments, "-m", str(llama)], capture_output=True, text=True, timeout=600)
    assert done.returncode in (1, 2) and said in done.stderr and "\nquire:" not in done.stderr, done.stderr


def test_a_context_too_short_to_tell(tmp_path):
    model = models.make(tmp_path / "short.gguf", "llama", more_keys=lambda writer: writer.add_context_length(200))
    done = subprocess.run([PROGRAM, "probe", "-m", str(model)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and "too short" in done.stderr
