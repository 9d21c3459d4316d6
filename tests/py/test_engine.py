"""The engine against libllama: tiny random models of every architecture and weight type, hostile files, real models."""

import json
import os
import pathlib
import subprocess

import gguf
import numpy as np
import pytest

import engine_models as models
from conftest import full_sweep

PROGRAMS = pathlib.Path(os.environ.get("QUIRE_ENGINE_PROGRAMS", ""))
pytestmark = pytest.mark.skipif(not (PROGRAMS / "engine_oracle").exists(), reason="built without the engine")

# f32 weights, SiLU: nothing rounds to fewer than 24 bits, so only the order of sums differs, over a few layers.
F32_BOUND = 5e-5
WAYS = ("prefill", "odd_chunks", "decode", "batch")


def run(program, *arguments, status=0):
    done = subprocess.run([PROGRAMS / f"engine_{program}", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def oracle(model, n_tokens, ways, *text):
    """On one thread. ways: what tests/engine/oracle.c is to compute; nothing else costs time."""
    return json.loads(run("oracle", model, n_tokens, 1, ",".join(ways), *text))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("engine")


def tiny(folder, arch, **options):
    path = folder / (arch + "".join(f"-{k}{v}" for k, v in options.items()) + ".gguf")
    return path if path.exists() else models.make(path, arch, **options)


@pytest.mark.parametrize("arch", models.SHAPES)
def test_logits_equal_libllama(folder, arch):
    """Prefill, odd chunks, single steps and batches; 300 tokens are four windows of the sliding layers. ggml's GELU looks
    its values up in a table of f16, so a Gemma gets gates so large that they pass the table by."""
    gain = 1e4 if "gemma" in arch else 1.0
    result = oracle(tiny(folder, arch, gate_gain=gain), 300, WAYS)
    for way in WAYS:
        assert result[way]["largest"] < F32_BOUND, (way, result)
        assert result[way]["other_top"] == 0, (way, result)


@pytest.mark.parametrize("arch", ["gemma3", "gemma4"])
def test_usual_gates(folder, arch):
    """With gates inside the table a row may be off by steps of f16: less than what libllama's own two ways of attention,
    which differ by one rounding of q to f16, are apart."""
    result = oracle(tiny(folder, arch), 300, ("itself", "prefill", "decode"))
    for way, itself in (("prefill", "itself"), ("decode", "itself_decode")):
        assert result[way]["largest"] < result[itself]["largest"]
        assert result[way]["median"] < result[itself]["median"]
        assert result[way]["other_top"] == 0


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("cut", [(300, 64, 128), (300, 5, 200), (130, 0, 70), (60, 20, 40)])
def test_shift(folder, arch, cut):
    """One layer: the cache without a part is the cache of the text without that part."""
    assert float(run("shift", tiny(folder, arch, layers=1), *cut)) < F32_BOUND


# Three threads that spin for each other on two processors are slow. Outside of test-all a raw cache is tried with a model
# without windows and with one that has windows and shared layers, a packed one with all.
@pytest.mark.parametrize("arch, kv", [(arch, kv) for arch in models.SHAPES for kv in ("none", "k4v4")
                                      if full_sweep() or kv == "k4v4" or arch in ("llama", "gemma4")])
def test_same_bits(folder, arch, kv):
    run("invariance", tiny(folder, arch), kv, 200)


def weight_types():
    """Those that ggml can multiply here; a failure of the list is a failure of test_weight_types_are_listed."""
    done = subprocess.run([PROGRAMS / "engine_retype", "list"], capture_output=True, text=True) if PROGRAMS.name else None
    return [line.split()[0] for line in done.stdout.splitlines()] if done and done.returncode == 0 else []


def test_weight_types_are_listed():
    """Tests below run on these, and would be none without them."""
    assert {"f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K"} <= set(weight_types())


@pytest.mark.parametrize("kind", weight_types())
def test_weight_types(folder, kind, monkeypatch):
    """Every type that ggml can multiply, as it is and rearranged for this processor. The first token attends to itself
    alone: what differs there is the weights. One layer has every matrix that any layer has, and rows of one block (256)
    and of two; what several layers do is test_same_bits. Outside of test-all on one thread: product_rows multiplies
    every type on two."""
    plain = tiny(folder, "llama", embd=256, ff=512, heads=8, kv=2, dim=32, layers=1)
    path = folder / "typed.gguf"
    run("retype", plain, path, kind)
    for repack in (False, True):
        if repack:
            monkeypatch.setenv("ORACLE_REPACK", "1")
        result = oracle(path, 8, ("lone", "prefill", "decode", "batch"))
        assert result["lone"]["apart"] == 0 and result["lone_decode"]["apart"] == 0, (repack, result)
        for way in ("prefill", "decode", "batch"):
            assert result[way]["first"] < F32_BOUND, (repack, way, result)
            assert result[way]["other_top"] == 0, (repack, way, result)
    run("invariance", path, "k8v4", 40, 3 if full_sweep() else 1)
    path.unlink()


# ---------------------------------------------------------------- files that are not as they should be


def refusal(path):
    return run("load", path).strip()


def test_missing_tensor(folder):
    for name in ("blk.1.attn_k.weight", "output_norm.weight", "token_embd.weight", "blk.2.ffn_down.weight"):
        path = models.make(folder / "missing.gguf", "llama", without=name)
        said = refusal(path)
        assert said.startswith("QUIRE_E_MODEL") and name in said and "missing" in said


def test_wrong_shape(folder):
    name = "blk.0.attn_q.weight"
    path = models.make(folder / "shape.gguf", "llama", spoil={name: lambda x: np.ascontiguousarray(x[:, :-32])})
    said = refusal(path)
    assert said.startswith("QUIRE_E_MODEL") and name in said and "64x192" in said and "96x192" in said


def test_wrong_type(folder):
    path = models.make(folder / "type.gguf", "qwen3", spoil={"blk.0.attn_norm.weight": lambda x: x.astype(np.float16)})
    said = refusal(path)
    assert said.startswith("QUIRE_E_MODEL") and "blk.0.attn_norm.weight" in said and "f16" in said


def test_unknown_architecture(folder):
    path = tiny(folder, "llama")
    data = path.read_bytes().replace(b"llama", b"lambda"[:5], 1)
    other = folder / "unknown.gguf"
    other.write_bytes(data)
    said = refusal(other)
    assert said.startswith("QUIRE_E_MODEL") and "'lambd'" in said


FUSED = np.zeros((320, 96), np.float32)
EXPERTS = np.zeros((4, 160, 96), np.float32)


@pytest.mark.parametrize("changes, said", [
    (dict(more_keys=lambda w: w.add_expert_count(8)), ["8 experts"]),
    (dict(extra={"blk.1.ffn_up_exps.weight": EXPERTS}), ["blk.1.ffn_up_exps.weight", "mixture of experts"]),
    (dict(extra={"blk.0.attn_qkv.weight": FUSED}, without="blk.0.attn_q.weight"),
     ["blk.0.attn_qkv.weight", "q, k and v in one tensor"]),
    (dict(more_keys=lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)), ["longrope"]),
    (dict(more_keys=lambda w: w.add_uint16("split.count", 3)), ["one of 3 parts", "llama-gguf-split --merge"]),
    (dict(extra={"rope_factors_long.weight": np.ones(16, np.float32)}), ["rope_factors_long.weight", "LongRoPE"]),
    (dict(extra={"blk.2.attn_sinks.weight": np.ones(6, np.float32)}), ["blk.2.attn_sinks.weight", "llama"]),
])
def test_unsupported_parts(folder, changes, said):
    """Whatever a file has that the engine would pass over is refused, by name."""
    answer = refusal(models.make(folder / "unsupported.gguf", "llama", **changes))
    assert answer.startswith("QUIRE_E_MODEL"), answer
    for words in said:
        assert words in answer, answer


def without_keys(*names):
    return lambda writer: [writer.kv_data[0].pop(name) for name in names]


def with_key(name, change):
    def more_keys(writer):
        entry = writer.kv_data[0][name]
        entry.value = change(entry.value)
    return more_keys


def test_heads_too_wide_by_default(folder):
    """No key says how wide heads are: then it is all of the embedding."""
    keys = ("llama.attention.key_length", "llama.attention.value_length", "llama.rope.dimension_count")
    path = models.make(folder / "wide.gguf", "llama", embd=1280, heads=1, kv=1, dim=1280, more_keys=without_keys(*keys))
    said = refusal(path)
    assert said.startswith("QUIRE_E_MODEL") and "heads of 1280 channels" in said


@pytest.mark.parametrize("change, said", [
    (with_key("tokenizer.ggml.model", lambda kind: "none"), "has no tokenizer"),
    (with_key("tokenizer.ggml.tokens", lambda tokens: [t if t != "<0x41>" else "spoilt" for t in tokens]), "no token <0x41>"),
    (with_key("tokenizer.ggml.tokens", lambda tokens: tokens[:-1] + tokens[:1]), "is there twice"),
])
def test_vocabularies_that_would_end_the_process(folder, change, said):
    answer = refusal(models.make(folder / "vocabulary.gguf", "llama", more_keys=change))
    assert answer.startswith("QUIRE_E_MODEL") and said in answer, answer


def test_a_byte_may_be_its_own_token(folder):
    def more_keys(writer):
        with_key("tokenizer.ggml.tokens", lambda tokens: [t if t != "<0x41>" else "A" for t in tokens])(writer)
        with_key("tokenizer.ggml.token_type",
                 lambda kinds: [k if i != 3 + 0x41 else int(gguf.TokenType.NORMAL) for i, k in enumerate(kinds)])(writer)

    assert outcomes([models.make(folder / "byte.gguf", "llama", more_keys=more_keys)])[0].startswith("QUIRE_OK")


def test_not_a_model(folder):
    other = folder / "not.gguf"
    other.write_bytes(b"hello, this is a text and not a model")
    assert refusal(other).startswith("QUIRE_E_MODEL") and "not a GGUF file" in refusal(other)
    assert refusal(folder / "nothing.gguf").startswith("QUIRE_E_IO")
    os.mkfifo(folder / "pipe.gguf")  # opening one waits for a writer, unless it is asked not to
    for path in (folder, folder / "pipe.gguf"):
        assert refusal(path).startswith("QUIRE_E_IO") and "is not a regular file" in refusal(path)


def test_values_not_finite(folder):
    def spoil(x):
        x = x.copy()
        x[3, 5] = np.nan
        return x

    path = models.make(folder / "nan.gguf", "llama", spoil={"blk.1.attn_v.weight": spoil})
    said = refusal(path)
    assert said.startswith("QUIRE_E_VALUE") and "layer 1" in said


def outcomes(paths):
    lines = [line for line in run("load", *paths).split("\n") if line.startswith("QUIRE_")]
    assert len(lines) == len(paths)
    return lines


@pytest.mark.parametrize("arch", models.SHAPES)
def test_truncated(folder, arch):
    """Cut at 40 lengths: refused, with a reason that names the file."""
    data = tiny(folder, arch).read_bytes()
    paths = []
    for i, length in enumerate(np.linspace(0, len(data) - 1, 40).astype(int)):
        paths.append(folder / f"cut{i}.gguf")
        paths[-1].write_bytes(data[:length])
    for path, said in zip(paths, outcomes(paths)):
        assert said.startswith("QUIRE_E_MODEL") and path.name in said, said


@pytest.mark.parametrize("arch", ["llama", "gemma4"])
def test_changed_bytes(folder, arch):
    """Random changes of keys and tensor descriptions: whatever is said, nothing crashes."""
    random = np.random.default_rng(5)
    data = np.frombuffer(tiny(folder, arch).read_bytes(), np.uint8)
    head = 20000
    paths = []
    for i in range(150):
        changed = data.copy()
        for at in random.integers(0, head, random.integers(1, 5)):
            changed[at] = random.integers(0, 256)
        paths.append(folder / f"changed{i}.gguf")
        paths[-1].write_bytes(changed.tobytes())
    assert any(line.startswith("QUIRE_E_MODEL") for line in outcomes(paths))


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_texts_are_stopped_anywhere(folder, arch):
    """What was told is in the cache, and nothing else."""
    assert "right" in run("stop", tiny(folder, arch))


# ---------------------------------------------------------------- real models on real text


def fetched(name):
    tool = pathlib.Path(__file__).parents[2] / "tools/fetch-model"
    done = subprocess.run([tool, name], capture_output=True, text=True)
    if done.returncode != 0 and os.environ.get("QUIRE_REQUIRE_ALL") != "1":
        pytest.skip(f"{name} cannot be fetched")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def smollm2_f32(folder):
    """Expanded, since int8 activations turn any rounding into steps that no comparison of engines survives."""
    path = folder / "smollm2-f32.gguf"
    run("retype", fetched("smollm2"), path, "f32")
    yield path
    path.unlink()


TEXT = pathlib.Path(__file__).parents[2] / "docs/FORMAT.md"


def test_smollm2_logits(smollm2_f32):
    """100 tokens are a full page and an open one. Outside of test-all one text of the three is decoded token by token:
    test_logits_equal_libllama decodes all of them, with every architecture."""
    decode = "decode" if full_sweep() else "decode_first"
    result = oracle(smollm2_f32, 150 if full_sweep() else 100, ("prefill", "odd_chunks", decode, "batch"), TEXT)
    for way in WAYS:
        assert result[way]["largest"] < F32_BOUND, (way, result)
        assert result[way]["other_top"] == 0, (way, result)


def test_smollm2_text(smollm2_f32):
    prompts = ["The capital of France is", "Once upon a time, there was a", "def fibonacci(n):", "Water boils at",
               "Dear Sir or Madam,"]
    run("greedy", smollm2_f32, 24, *prompts[:5 if full_sweep() else 3])


def no_farther_than_chance(result, way):
    """Of rows that are as far from libllama as its own flash attention is, half are farther by chance. Five standard
    deviations above that happen once in three million."""
    rows = result[way]["rows"]
    return result[way]["farther"] <= rows / 2 + 5 * rows**0.5 / 2


@pytest.mark.parametrize("name, repack", [("smollm2", True), ("gemma3", True)] + [("smollm2", False)] * full_sweep())
def test_weights_as_shipped(name, repack, monkeypatch):
    """A token that sees itself alone takes the same products in the same order as in libllama, so the same bits come out,
    in a prompt, in a batch of 64 sequences, and as a lone row. Later tokens differ in the last bits of attention, and
    activations rounded to int8 amplify any difference to the same size, whatever its cause: there only the distribution
    can be compared. test_smollm2_logits bounds attention itself, with weights in f32. Outside of test-all the weights are
    rearranged for this processor, as `quire run` has them; test_weight_types has every type in both ways."""
    if repack:
        monkeypatch.setenv("ORACLE_REPACK", "1")
    decode = "decode" if full_sweep() else "decode_first"
    result = oracle(fetched(name), 40, ("prefill", "odd_chunks", decode, "batch", "itself", "lone"), TEXT)
    assert result["lone"]["apart"] == 0 and result["lone_decode"]["apart"] == 0, result
    for way in ("prefill", "odd_chunks", "decode"):
        assert result[way]["first"] == 0, (way, result)
    for way in ("prefill", "odd_chunks", "decode", "batch"):
        assert no_farther_than_chance(result, way), (way, result)
        assert result[way]["other_top"] == 0, (way, result)


@pytest.mark.parametrize("name, kv", [("gemma3", "k4v4")] + [("smollm2", "k8v4")] * full_sweep())
def test_real_models_same_bits(name, kv):
    """Any number of threads, any cut into steps, any neighbours: 80 tokens are a packed page and an open one. Outside of
    test-all Gemma 3 alone: 18 layers, with and without windows, where SmolLM2 has 30 of one kind."""
    run("invariance", fetched(name), kv, 80)
