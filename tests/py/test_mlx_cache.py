"""Prompt caches of mlx-lm in and out: written by mlx-lm's own classes, attended to by Quire beside mlx's arithmetic, and
read back by mlx-lm's own loader."""

import json
import os
import subprocess

import mlx.core as mx
import numpy as np
import pytest

import mlx_caches
import quire_file
import quire_lib
from mlx_caches import MetaState, attention, save_meta_state
from quire_pool import Pool, layer_of

PROGRAM = os.environ.get("QUIRE_PROGRAM", "")
pytestmark = pytest.mark.skipif(not os.path.exists(PROGRAM), reason="built without the program")


@pytest.fixture(scope="module")
def mlx_lm():
    module = mlx_caches.load_module()
    if not module:
        pytest.skip("mlx-lm is not installed")
    return module


def quire(*arguments, status=0):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def inspect(path):
    return json.loads(quire("inspect", path, "--json").stdout)


# ---------------------------------------------------------------- attention in Quire over a file

def attend_next(path, k, v, q, heads):
    """Loads the file, appends one token (layers, G, D) to it, and attends to all with q (layers, H, D)."""
    report = inspect(path)
    layers = [layer_of(heads, *(told[n] for n in ("n_kv_heads", "k_dim", "v_dim", "k", "v", "window", "keep")))
              for told in report["layers"]]
    with Pool(layers, report["raw"], report["sinks"]) as pool:
        return pool.load(path).step(k[:, None], v[:, None], q[:, None])[:, 0]


# ---------------------------------------------------------------- caches of mlx-lm

LAYERS, HEADS, KV, DIM = 3, 4, 2, 64


def random_rows(n, seed=0):
    random = np.random.default_rng(seed)
    return (mx.array(random.standard_normal((LAYERS, 1, KV, n, DIM)).astype(np.float32)) for _ in range(2))


def fill(caches, n, dtype=mx.float16, decode=3, seed=0):
    """n tokens: a prompt in two chunks, then single steps."""
    k, v = (x.astype(dtype) for x in random_rows(n, seed))
    cuts = [0, n // 2, max(n // 2, n - decode)] + list(range(max(n // 2, n - decode) + 1, n + 1))
    for a, b in zip(cuts, cuts[1:]):
        for i, cache in enumerate(caches):
            if b > a:
                cache.update_and_fetch(k[i][:, :, a:b], v[i][:, :, a:b])
    return k, v


def dense(cache, q, k, v):
    """What mlx attends to in the next step: its own rows after update, dequantized; (heads, dim) in fp64."""
    keys, values = cache.update_and_fetch(k, v)
    if isinstance(keys, (tuple, list)):
        sizes = [dict(group_size=g, bits=b) for g, b in quantizers(cache)]
        keys, values = (mx.dequantize(*x, **s) for x, s in zip((keys, values), sizes))
    keys, values = (np.array(x.astype(mx.float32))[0] for x in (keys, values))
    return attention(q, keys, values)


def quantizers(cache):
    if hasattr(cache, "key_bits"):
        return (cache.key_group_size, cache.key_bits), (cache.value_group_size, cache.value_bits)
    return ((cache.group_size, cache.bits),) * 2


@pytest.fixture(autouse=True)
def reference_kernels(monkeypatch):
    """What is tested is what the files hold, and fast kernels round q and weights of raw f16 rows to fp16."""
    monkeypatch.setenv("QUIRE_CPU", "ref")


def assert_same_step(path, caches, bound):
    """The next token in Quire, over the file, against mlx. It comes in raw here and quantized there: constant rows, which
    mlx's codecs hold exactly."""
    random = np.random.default_rng(5)
    row = np.full((LAYERS, KV, DIM), 0.5, np.float32)
    q = random.standard_normal((LAYERS, HEADS, DIM)).astype(np.float32)
    got = attend_next(path, row, row, q, HEADS)
    for i, cache in enumerate(caches):
        dtype = (cache.keys[1] if isinstance(cache.keys, (tuple, list)) else cache.keys).dtype
        x = mx.array(row[i][None, :, None]).astype(dtype)
        wanted = dense(cache, q[i], x, x)
        error = np.abs(got[i] - wanted).max() / np.abs(wanted).max()
        assert error < bound, (i, error)


# Quire's own rounding of q and of the weights (docs/KERNELS.md: 1e-2 relative at 4 bits), and mlx's rounding of s*q+b.
BOUNDS = {8: 0.003, 4: 0.02, 2: 0.02, 0: 2e-6}


@pytest.mark.parametrize("bits, group, dtype", [(8, 64, mx.float16), (4, 32, mx.bfloat16), (4, 64, mx.float16), (2, 64, mx.float32)])
@pytest.mark.parametrize("n", [40, 64, 200, 300])
def test_quantized_cache(mlx_lm, tmp_path, bits, group, dtype, n):
    caches = [mlx_lm.QuantizedKVCache(group_size=group, bits=bits) for _ in range(LAYERS)]
    fill(caches, n, dtype)
    theirs, ours, back = (tmp_path / x for x in ("a.safetensors", "b.quire", "c.safetensors"))
    mlx_lm.save_prompt_cache(str(theirs), caches, {"model": "a test"})
    quire("convert", theirs, ours)
    report = inspect(ours)
    assert report["length"] == n and report["sound"]
    quire("convert", ours, back)
    again = mlx_lm.load_prompt_cache(str(back))
    for cache, other in zip(caches, again):
        assert type(other) is type(cache) and other.offset == n and quantizers(other) == quantizers(cache)
        full = n // 64 * 64  # the last page is raw in Quire, and quantized again
        for mine, yours in zip((cache.keys, cache.values), (other.keys, other.values)):
            for a, b in zip(mine, yours):
                assert b.shape[2] == n and a.dtype == b.dtype
                assert mx.array_equal(a[:, :, :full], b[:, :, :full])
            values = [mx.dequantize(*(x[:, :, :n] for x in side), group_size=group, bits=bits).astype(mx.float32)
                      for side in (mine, yours)]
            step = np.array(mx.abs(mine[1][:, :, :n]).astype(mx.float32)).max()
            assert mx.abs(values[0] - values[1]).max().item() <= step
    assert_same_step(ours, caches, BOUNDS[bits])


@pytest.mark.parametrize("n, size, keep", [(50, 100, 4), (100, 100, 4), (333, 100, 4), (333, 70, 0), (200, 130, 64)])
@pytest.mark.parametrize("decode", [3, 90])
def test_rotating_cache(mlx_lm, tmp_path, n, size, keep, decode):
    caches = [mlx_lm.RotatingKVCache(max_size=size, keep=keep) for _ in range(LAYERS)]
    fill(caches, n, decode=min(decode, n // 2))
    theirs, ours, back = (tmp_path / x for x in ("a.safetensors", "b.quire", "c.safetensors"))
    mlx_lm.save_prompt_cache(str(theirs), caches)
    quire("convert", theirs, ours)
    assert [x["window"] for x in inspect(ours)["layers"]] == [size - keep] * LAYERS
    quire("convert", ours, back)
    again = mlx_lm.load_prompt_cache(str(back))
    assert all(type(x) is mlx_lm.RotatingKVCache and x.offset == n and x.max_size == size for x in again)
    assert_same_step(ours, again, BOUNDS[0])
    assert_same_step(ours, caches, BOUNDS[0])


def test_ring_says_what_it_lost(mlx_lm, tmp_path):
    """Pages of a ring have zeros where tokens have left it; the file counts only what a later query sees."""
    caches = [mlx_lm.RotatingKVCache(max_size=90, keep=4), mlx_lm.KVCache()]
    fill(caches, 270)
    mlx_lm.save_prompt_cache(str(tmp_path / "a.safetensors"), caches)
    quire("convert", tmp_path / "a.safetensors", tmp_path / "b.quire")
    file = quire_file.SavedFile((tmp_path / "b.quire").read_bytes(), {info.codec: name for name, info in quire_lib.CODECS.items()})
    seen = [t for t in range(256) if t < 4 or t > 270 - 86]
    assert file.parts[file.layers[0].group][2] == [sum(1 << t % 64 for t in seen if t // 64 == page) for page in range(4)]
    assert file.parts[file.layers[1].group][2] == [2 ** 64 - 1] * 4


def test_mixed_layers(mlx_lm, tmp_path):
    """As a model with sliding and full layers has them."""
    caches = [mlx_lm.RotatingKVCache(max_size=90), mlx_lm.KVCache(), mlx_lm.RotatingKVCache(max_size=90)]
    fill(caches, 270)
    mlx_lm.save_prompt_cache(str(tmp_path / "a.safetensors"), caches)
    quire("convert", tmp_path / "a.safetensors", tmp_path / "b.quire")
    quire("convert", tmp_path / "b.quire", tmp_path / "c.safetensors")
    again = mlx_lm.load_prompt_cache(str(tmp_path / "c.safetensors"))
    assert [type(x).__name__ for x in again] == [type(x).__name__ for x in caches]
    assert_same_step(tmp_path / "b.quire", again, BOUNDS[0])
    assert_same_step(tmp_path / "b.quire", caches, BOUNDS[0])


# ---------------------------------------------------------------- the layout with meta_state

@pytest.mark.parametrize("fields", [3, 5])
def test_meta_state(tmp_path, fields):
    n, k_quantizer = 150, (64, 8)
    v_quantizer = (64, 8) if fields == 3 else (32, 4)
    k, v = (x.astype(mx.float16) for x in random_rows(n))
    numbers = [n, *k_quantizer] + (list(v_quantizer) if fields == 5 else [])
    caches = [MetaState("QuantizedKVCache", k[i], v[i], numbers, k_quantizer, v_quantizer) for i in range(LAYERS)]
    a, b, c = (tmp_path / x for x in ("a.safetensors", "b.quire", "c.safetensors"))
    save_meta_state(a, caches)
    quire("convert", a, b)
    assert {(x["k"], x["v"]) for x in inspect(b)["layers"]} == {("a8", "a8" if fields == 3 else "a4g32")}
    quire("convert", b, c, "--layout", "meta_state")
    arrays, notes = mx.load(str(c), return_metadata=True)
    before, _ = mx.load(str(a), return_metadata=True)
    assert [notes[f"0.1.{j}"] for j in range(len(numbers))] == [str(x) for x in numbers] and f"0.1.{len(numbers)}" not in notes
    assert notes["2.2"] == "QuantizedKVCache"
    for name, array in before.items():
        assert mx.array_equal(array[:, :, :128], arrays[name][:, :, :128]) and arrays[name].shape == array.shape
    if fields == 5:  # mlx-lm 0.32 has no place for it
        assert "meta_state" in quire("convert", b, c, "--layout", "scalars", status=2).stderr


@pytest.mark.parametrize("place", [40, 100])
def test_quantized_ring_with_meta_state(mlx_lm, tmp_path, place):
    """to_quantized() of a ring that has wrapped, as the branch writes it: keep size offset place, then K and V."""
    n, size, keep = 333, 100, 4
    ring = mlx_lm.RotatingKVCache(max_size=size, keep=keep)
    k, v = (x.astype(mx.float16) for x in random_rows(n))
    ring.update_and_fetch(k[0][:, :, :200], v[0][:, :, :200])
    for t in range(200, n if place == 40 else 201):
        ring.update_and_fetch(k[0][:, :, t:t + 1], v[0][:, :, t:t + 1])
    numbers = [keep, size, ring.offset, ring._idx, 64, 8, 64, 4]
    cache = MetaState("QuantizedRotatingKVCache", ring.keys, ring.values, numbers, (64, 8), (64, 4))
    a, b, c = (tmp_path / x for x in ("a.safetensors", "b.quire", "c.safetensors"))
    save_meta_state(a, [cache])
    quire("convert", a, b)
    quire("convert", b, c)
    arrays, notes = mx.load(str(c), return_metadata=True)
    assert notes["2.0"] == "QuantizedRotatingKVCache"
    assert [notes[f"0.0.{j}"] for j in range(8)] == [str(x) for x in (keep, size, ring.offset, size, 64, 8, 64, 4)]
    # In temporal order now; what was in a full page has its codes still.
    ordered = [ring._temporal_order(x) for x in (*cache.keys, *cache.values)]
    first = ring.offset - (size - keep)
    sealed = [j for j in range(size) for t in [j if j < keep else first + j - keep]
              if t < ring.offset // 64 * 64 and (t != first or t // 64 == (first + 1) // 64)]
    assert len(sealed) > 20
    for j, name in enumerate(("0.0.0", "0.0.1", "0.0.2", "0.1.0", "0.1.1", "0.1.2")):
        assert mx.array_equal(arrays[name][:, :, sealed], ordered[j][:, :, sealed]), name


# ---------------------------------------------------------------- rows of another type than the pool's

def save_raw(path, raw, k_codec, v_codec, n, sinks=0):
    """A file of LAYERS layers in the codecs f32, f16, bf16 or raw, and the rows (layers, KV, n, DIM) that it should hold."""
    k, v = (np.random.default_rng(i).standard_normal((LAYERS, n, KV, DIM)).astype(np.float32) for i in (1, 2))
    layers = [layer_of(HEADS, KV, DIM, k=k_codec, v=v_codec) for _ in range(LAYERS)]
    with Pool(layers, raw, sinks) as pool:
        pool.create().step(k, v)
        pool.save(path)
    mlx_types = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}

    def held(x, codec):
        """All rows come in the pool's type; those of full pages that are no sinks are then in the codec's."""
        rows = mx.array(x.transpose(0, 2, 1, 3)).astype(mlx_types[raw]).astype(mx.float32)
        packed = rows.astype(mlx_types[raw if codec == "raw" else codec]).astype(mx.float32)
        sealed = np.zeros(n, bool)
        sealed[sinks if n >= 64 else 0:n // 64 * 64] = True
        return mx.where(mx.array(sealed)[None, None, :, None], packed, rows)
    return held(k, k_codec), held(v, v_codec)


@pytest.mark.parametrize("raw, k_codec, v_codec", [("f16", "f32", "f32"), ("f16", "bf16", "bf16"), ("bf16", "f16", "f32"), ("f32", "f16", "f16"),
                                                   ("f16", "raw", "f32"), ("f16", "f16", "f16"), ("bf16", "raw", "raw")])
@pytest.mark.parametrize("n, sinks", [(40, 0), (150, 0), (192, 4)])
def test_rows_of_another_type(mlx_lm, tmp_path, raw, k_codec, v_codec, n, sinks):
    """No value is changed: rows of the pool's type keep it, others become f32, which holds both."""
    ours, theirs = tmp_path / "a.quire", tmp_path / "b.safetensors"
    wanted = save_raw(ours, raw, k_codec, v_codec, n, sinks)
    quire("convert", ours, theirs)
    for i, cache in enumerate(mlx_lm.load_prompt_cache(str(theirs))):
        assert type(cache) is mlx_lm.KVCache and cache.offset == n
        for rows, codec, values in ((cache.keys, k_codec, wanted[0]), (cache.values, v_codec, wanted[1])):
            same = codec in ("raw", raw)
            assert rows.dtype == ({"f16": mx.float16, "bf16": mx.bfloat16, "f32": mx.float32}[raw] if same else mx.float32)
            assert rows.shape[2] == n and mx.array_equal(rows[0].astype(mx.float32), values[i])
    if (k_codec in ("raw", raw)) == (v_codec in ("raw", raw)):  # all arrays of one type: it can come back
        back = tmp_path / "c.quire"
        quire("convert", theirs, back)
        assert inspect(back)["length"] == n and inspect(back)["sound"]


def test_a_link_where_the_file_is_made_is_not_followed(tmp_path):
    ours, theirs, other = tmp_path / "a.quire", tmp_path / "b.safetensors", tmp_path / "other"
    save_raw(ours, "f16", "f16", "f16", 40)
    other.write_bytes(b"of somebody else")
    (tmp_path / "b.safetensors.part").symlink_to(other)
    quire("convert", ours, theirs)
    assert other.read_bytes() == b"of somebody else" and theirs.is_file() and not theirs.is_symlink()
    assert sorted(x.name for x in tmp_path.iterdir()) == ["a.quire", "b.safetensors", "other"]


# ---------------------------------------------------------------- refusals

def test_refusals(mlx_lm, tmp_path):
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"\x05\0\0\0\0\0\0\0hello")
    assert "not JSON" in quire("convert", bad, tmp_path / "x", status=1).stderr
    bad.write_bytes(b"\xff" * 64)
    assert "does not fit" in quire("convert", bad, tmp_path / "x", status=1).stderr
    mx.save_safetensors(str(bad), {"a": mx.zeros(3)})
    assert "not a prompt cache" in quire("convert", bad, tmp_path / "x", status=1).stderr
    caches = [mlx_lm.QuantizedKVCache(group_size=64, bits=4) for _ in range(LAYERS)]
    fill(caches, 100)
    mlx_lm.save_prompt_cache(str(bad), caches)
    good = bad.read_bytes()
    for n in (7, 100, len(good) - 1):
        bad.write_bytes(good[:n])
        said = quire("convert", bad, tmp_path / "x", status=1).stderr
        assert "not a safetensors file" in said or "bytes do not agree" in said
    for old, new, said in ((b"QuantizedKVCache", b"SomeOtherKVCache", "is a SomeOtherKVCache, which cannot be converted"),
                           (b"[1,2,", b"[2,1,", "is not of shape"), (b"\"U32\"", b"\"F32\"", "of a type that cannot be")):
        assert old in good and len(old) == len(new)
        bad.write_bytes(good.replace(old, new))
        assert said in quire("convert", bad, tmp_path / "x", status=1).stderr
    assert not (tmp_path / "x").exists()
    caches[1].offset = 3
    mlx_lm.save_prompt_cache(str(bad), caches)
    assert "another number of tokens" in quire("convert", bad, tmp_path / "x", status=1).stderr
