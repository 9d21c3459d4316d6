"""libggml-quire.so in programs on libllama: contexts with the plug-in beside contexts without it."""

import os
import pathlib
import re
import subprocess

import pytest

import engine_models as models
from conftest import full_sweep

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


# ---------------------------------------------------------------- caches in pages

# Raw pages hold what ggml's cache holds: what is left are two orders of summation, and ggml's V in f16 sums. The bound is
# the one that llama.cpp's own tests have between two devices. Packed pages: the loss of eight bits; a page, a cell or a
# mask that is wrong gives errors near 1.
BOUNDS = {"none": 1e-4, "k8v8": 1e-2, "k4v4": 2e-1}


def caches(done):
    """(packed, plain) tensors of every cache in the report."""
    return [tuple(map(int, pair)) for pair in re.findall(r"^quire: cache of .*: (\d+) packed, (\d+) plain$", done.stderr, re.M)]


@pytest.mark.parametrize("kv", BOUNDS)
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3", "gemma4"])
def test_pages(arch, kv, model):
    done = run("compare", model(arch), "--splits", "1", "--bound", BOUNDS[kv], *SINGLE, kv=kv)
    assert caches(done) and all(packed and not plain for packed, plain in caches(done)), done.stderr


@pytest.mark.parametrize("options", [[], ["--unified"], ["--unified", "--threads", "2", "--ubatch", "33"]], ids=" ".join)
@pytest.mark.parametrize("kv", BOUNDS)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_pages_of_several_sequences(arch, kv, options, model):
    run("compare", model(arch), "--seqs", "3", *options, "--bound", BOUNDS[kv], *SEVERAL, kv=kv)


@pytest.mark.parametrize("kv", BOUNDS)
def test_pages_after_a_context_shift(kv, model):
    done = run("compare", model("llama"), "--bound", BOUNDS[kv], "shift", kv=kv)
    assert caches(done) == [(6, 0)]


# ---------------------------------------------------------------- graphs that are computed in parts

def codecs(done):
    """Layer -> all codecs that it had, in any context of the report."""
    found = {}
    for layer, pair in re.findall(r"^quire:   cache_k_l(\d+) (\S+:\S+) ", done.stderr, re.M):
        found.setdefault(int(layer), set()).add(pair)
    return found


def page_sets(done):
    """(windowed, how many sets of pages there are) of all caches."""
    return set(re.findall(r"^quire: cache of .* cells of f16(, windowed|), page sets (\d+),", done.stderr, re.M))


FULL, WINDOW = ("", "1"), (", windowed", "1")


WINDOWED = {"llama": [], "gemma3": [0, 1, 2, 3, 4, 6], "gemma4": [0, 1, 2, 3]}


@pytest.mark.parametrize("options", [["--parts", "1"], ["--parts", "7", "--swa-full"]], ids=" ".join)
@pytest.mark.parametrize("arch", WINDOWED)
def test_parts_of_a_graph_change_no_bit(arch, options, model):
    """A callback that looks at nodes has the graph computed in parts. Layers of a cache still share a set of pages,
    those with a window are raw, and a token sees its own page raw. The other context of the comparison has whole graphs."""
    done = run("compare", model(arch), *options, "prefill", "decode", "holes", "states", "aborted", kv="k4v4")
    assert codecs(done) == {i: {"raw:raw" if i in WINDOWED[arch] else "km4:vt4"} for i in codecs(done)}
    assert page_sets(done) == ({FULL, WINDOW} if WINDOWED[arch] else {FULL})


@pytest.mark.parametrize("options", [[], ["--unified", "--ubatch", "33"]], ids=" ".join)
def test_parts_of_a_graph_on_several_sequences_change_no_bit(options, model):
    run("compare", model("gemma3"), "--parts", "3", "--seqs", "3", *options, *SEVERAL, kv="k4v4")


def test_parts_of_a_graph_with_a_context_shift_change_no_bit(model):
    run("compare", model("llama"), "--parts", "1", "shift", kv="k4v4")


def test_a_budget_is_for_all_parts_of_a_graph(model):
    """One preset for all layers: the first part that has a cache asks for all of them."""
    done = run("compare", model("gemma3"), "--parts", "1", "prefill", kv="auto", good=False, QUIRE_KV_BYTES="1K")
    assert re.search(r"^quire: k3v3 needs [0-9.]+ MiB for 1 x 256 cells and other caches", done.stderr, re.M)


def test_layers_of_two_devices(model):
    """Then a graph is in pieces: the CPU's layers, and those between them."""
    done = run("compare", model("gemma3"), "--layers", "5", "--bound", BOUNDS["k4v4"], "decode", kv="k4v4")
    assert codecs(done) == {3: {"raw:raw"}, 4: {"raw:raw"}, 5: {"km4:vt4"}, 6: {"raw:raw"}}
    assert page_sets(done) == {FULL, WINDOW}


def test_a_model_whose_layers_all_have_a_window(tmp_path):
    """It has one cache, which looks as any other does: it is packed."""
    only_windows = models.make(tmp_path / "windows.gguf", "gemma3", layers=5)
    done = run("compare", only_windows, "--bound", BOUNDS["k8v8"], "prefill", "decode", kv="k8v8")
    assert codecs(done) == {i: {"kc8:vt8"} for i in range(5)} and page_sets(done) == {FULL}
    run("compare", only_windows, "--parts", "1", "prefill", kv="k8v8")


# ---------------------------------------------------------------- layers that pages cannot serve

@pytest.mark.parametrize("options, reason", [(["--no-flash"], "V is stored transposed (no flash attention)"),
                                             (["--type", "q8_0"], "its type is one of ggml's quantized ones")])
def test_caches_that_stay_plain(options, reason, model):
    """Bit for bit what they are without the plug-in, and the report says why."""
    done = run("compare", model("llama"), *options, "prefill", "decode", "states", kv="k8v8")
    assert all(not packed and plain for packed, plain in caches(done))
    assert f"plain: {reason}" in done.stderr


@pytest.mark.parametrize("kv, exact, bits", [("none", 1, 16), ("k8v8", 0, 8.5)])
def test_graphs_that_no_model_makes(kv, exact, bits):
    """Known values through every way in and out of a cache; layers become plain on the way; memory is that of the pages."""
    done = run("graphs", exact, bits, kv=kv)
    assert caches(done) == [(2, 0), (2, 0), (2, 0), (0, 2), (0, 2), (0, 2), (0, 2), (2, 0), (2, 0), (0, 2), (2, 0),
                            (2, 0), (0, 2), (2, 0), (2, 0)]
    assert done.stderr.count("plain: CONT\n") == 2
    assert done.stderr.count("plain: it is written twice in a graph\n") == 2
    assert done.stderr.count("plain: its attention has other heads than its pages\n") == 2
    assert done.stderr.count("plain: its mask is computed in the graph (sparse attention)\n") == 2
    assert done.stderr.count("plain: out of memory\n") == 2
    assert done.stderr.count("plain: a batch is larger than any that was planned\n") == 2


def test_a_cell_that_does_not_exist_is_ggml_s_error():
    """As without the plug-in: no write behind the marks of a layer that is not packed yet."""
    assert "GGML_ASSERT" in run("graphs", "outside", kv="k8v8").stderr


def test_windowed_layers_stay_raw(model):
    done = run("compare", model("gemma3"), "--bound", BOUNDS["k4v4"], "decode", kv="k4v4")
    codecs = re.findall(r"^quire:   cache_k_l(\d+) (\S+) ", done.stderr, re.M)
    assert sorted(codecs) == sorted((str(i), "km4:vt4" if i == 5 else "raw:raw") for i in range(7))


# ---------------------------------------------------------------- all of llama.cpp's architectures

@pytest.mark.parametrize("kv", ["none"] + ["off"] * full_sweep())
def test_llama_cpp_s_own_test_of_architectures(kv):
    """With pages, all that is not the cache passes through the plug-in to ggml-cpu as well; with none of them
    (test-all) that is all there is. That this changes no bit, test_delegation_changes_no_bit says."""
    done = run("archs", "-b", "QUIRE0", "-s", "1", kv=kv)
    assert "Summary: all " in done.stdout, done.stdout


# ---------------------------------------------------------------- the file

def test_it_shows_one_function_and_wants_no_ggml():
    shown = subprocess.run(["nm", "-D", PLUGIN], capture_output=True, text=True, check=True).stdout
    assert re.findall(r" [TDBRV] (\S+)$", shown, re.M) == ["ggml_backend_init"]
    assert "U ggml" not in shown and "U quire" not in shown


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


@pytest.mark.parametrize("value", ["many", "-1", " -5", "5X", "1GX", "99999999999999999999"])
def test_a_bad_number_of_bytes_is_refused_in_one_line(value, model):
    done = run("compare", model("llama"), "prefill", good=False, QUIRE_KV_BYTES=value)
    (line,) = lines_of_quire(done)
    assert f"QUIRE_KV_BYTES={value} is not a number of bytes" in line


@pytest.mark.parametrize("name, value", [("QUIRE_CPU", "avx9"), ("QUIRE_STATS", "maybe")])
def test_a_bad_setting_is_refused_in_one_line(name, value, model):
    (line,) = lines_of_quire(run("compare", model("llama"), "prefill", kv="k8v8", good=False, **{name: value}))
    assert line.startswith(f"quire: {name}={value}") and line.endswith("; going on without Quire")


def test_an_unknown_policy_is_refused_in_one_line(model):
    (line,) = lines_of_quire(run("compare", model("llama"), "prefill", kv="k9v9", good=False))
    assert line.startswith("quire: QUIRE_KV=k9v9: ") and line.endswith("; going on without Quire")


def test_a_budget_that_is_too_small_is_a_failed_step(model):
    """llama_decode returns an error, and nothing else happens."""
    done = run("compare", model("llama"), "prefill", kv="auto", good=False, QUIRE_KV_BYTES="1K")
    assert re.search(r"^quire: k3v3 needs [0-9.]+ MiB for 1 x 1024 cells, and QUIRE_KV_BYTES leaves 0.0 MiB", done.stderr, re.M)
    assert "decoding 300 tokens failed" in done.stderr


def test_a_cache_without_a_price_is_not_over_budget():
    """Its layers stay plain, with the reason: no QUIRE_KV_BYTES would help."""
    lines = lines_of_quire(run("budget"))
    assert len(lines) == 2 and all("QUIRE_KV_BYTES leaves 1.0 MiB" in line for line in lines)


def test_a_calibration_is_for_one_model(tmp_path):
    run("calibration", tmp_path / "calibration")


@pytest.mark.parametrize("arch, layers", [("gemma3", 7), ("llama", 3)])
def test_another_model_s_calibration_is_told_of_in_one_line(arch, layers, model, tmp_path):
    """The file is of four layers of 64 channels. A model with more layers, and one whose layers have other sizes."""
    file = tmp_path / "calibration"
    run("calibration", file)
    done = run("compare", model(arch), "--bound", BOUNDS["k4v4"], "prefill", kv="k4v4", QUIRE_CALIBRATION=str(file), QUIRE_STATS="0")
    assert lines_of_quire(done) == [f"quire: QUIRE_CALIBRATION: {file} is of another model than this one with {layers} layers of "
                                    "K/V; going on without it"]


def test_the_model_s_own_calibration_is_taken_without_a_word(model, tmp_path):
    file = tmp_path / "calibration"
    run("calibration", file, "3", "2", "32")
    done = run("compare", model("llama"), "--bound", BOUNDS["k4v4"], "prefill", kv="k4v4", QUIRE_CALIBRATION=str(file), QUIRE_STATS="0")
    assert lines_of_quire(done) == []


def test_the_most_exact_codecs_of_a_budget(model):
    done = run("compare", model("llama"), "--bound", BOUNDS["none"], "decode", kv="auto", QUIRE_KV_BYTES="1G")
    assert " raw:raw " in done.stderr


@pytest.mark.parametrize("value", ["0", "0M", "65536", "512M", "512m", "2G", "2GiB"])
def test_a_number_of_bytes(value, model):
    run("compare", model("llama"), "prefill", QUIRE_KV_BYTES=value)
