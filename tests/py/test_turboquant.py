"""tq and tqp against mlx-vlm's TurboQuant: its state arrays go into a page and come out again, and Quire's pages, as
state arrays, mean to mlx-vlm's formulas what they mean to Quire.

The two rotate with other matrices, so rows are never compared: everything happens in rotated space."""

import importlib.util
import sys
import types
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import quire_lib
import quire_page
from quire_page import LEVELS, T, UNIT, F

DIMS = [64, 128, 256]
MSE = [("tq4", 4), ("tq3", 3), ("tq2", 2)]
PROD = [("tqp4", 4), ("tqp3", 3)]
# A page keeps fp16(norm / sqrt(D)): half a unit in the last of 11 bits, and a little for the fp32 steps around it.
NORM = 2.0**-11 + 1e-6
# fp32 rotations there and back, relative to the row's norm: a rotation is 6 to 8 additions and a product, each at most
# 2^-24 of a number no larger than the norm. Measured: below 1e-7.
FP32 = 1e-6


@pytest.fixture(scope="module")
def turboquant():
    """mlx_vlm/turboquant.py alone. The package itself wants a whole model stack, so this one file is loaded into a
    stand-in package that offers the names it imports from .models.cache; the codecs use none of them."""
    spec = importlib.util.find_spec("mlx_vlm")
    assert spec, "mlx-vlm is not installed"
    names = ["CacheMemory", "_BaseCache", "cache_nbytes", "create_attention_mask", "create_causal_mask"]
    cache = types.ModuleType("stand_in.models.cache")
    for name in names:
        setattr(cache, name, type(name, (), {}))
    modules = {"stand_in": types.ModuleType("stand_in"), "stand_in.models": types.ModuleType("stand_in.models")}
    for module in modules.values():
        module.__path__ = []
    modules["stand_in.models.cache"] = cache
    path = Path(spec.submodule_search_locations[0]) / "turboquant.py"
    spec = importlib.util.spec_from_file_location("stand_in.turboquant", path)
    module = modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.modules.update(modules)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        for name in modules:
            del sys.modules[name]


def rows(dim, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((T, dim)) * 10 ** rng.uniform(-2, 2, (T, 1))
    return x.astype(F)


def state_arrays(state):
    """mlx-vlm's state, batch and head dropped, under the names of quire_arrays; its fp16 norms widened."""
    names = {
        "norms": "norms",
        "indices": "codes",
        "mse_indices": "codes",
        "residual_norms": "residual_norms",
        "qjl_signs": "signs",
    }
    out = {}
    for field, a in state._asdict().items():
        a = a[0, 0]
        out[names[field]] = np.array(a.astype(mx.float32) if a.dtype == mx.float16 else a)
    return out


def quantized(codec, x):
    return state_arrays(codec.quantize(mx.array(x)[None, None]))


def page_of(name, dim):
    return quire_lib.Page(name, "raw" if name.startswith("tqp") else name, dim, dim)


def check_round_trip(page, side, arrays):
    packed = page.import_arrays(side, arrays)
    got = page.export_arrays(side, packed)
    means = {"means"} if side == "k" and "signs" not in arrays else set()  # Quire's own
    assert set(got) == set(arrays) | means
    assert not any(got[name].any() for name in means)
    for name in arrays:
        assert got[name].shape == arrays[name].shape, name
    assert np.array_equal(got["codes"], arrays["codes"])
    assert (np.abs(got["norms"] - arrays["norms"]) <= NORM * arrays["norms"]).all()
    if "signs" in arrays:
        assert np.array_equal(got["signs"], arrays["signs"])
        # Already fp16, and kept as it is.
        assert np.array_equal(got["residual_norms"], arrays["residual_norms"])
    again = page.import_arrays(side, got)
    assert np.array_equal(again, packed), "a page changes when it is exported and imported"
    for name, a in page.export_arrays(side, again).items():
        assert np.array_equal(a.view(np.uint32), got[name].view(np.uint32)), name
    return packed


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name, bits", MSE)
def test_mse_round_trip(turboquant, name, bits, dim):
    page = page_of(name, dim)
    codec = turboquant._TurboQuantMSECodec(dim, bits, 0)
    arrays = quantized(codec, rows(dim, 1))
    for side in "kv":
        packed = check_round_trip(page, side, arrays)
        # Import writes one side of the record and leaves the other alone.
        noise = np.random.default_rng(5).integers(0, 256, page.n_bytes, np.uint8)
        middle = quire_page.Record(name, name, dim, dim).sections[3].start
        own, other = slice(0, middle), slice(middle, None)
        if side == "v":
            own, other = other, own
        written = page.import_arrays(side, arrays, noise)
        assert np.array_equal(written[own], packed[own]) and np.array_equal(written[other], noise[other])
    # What mlx-vlm quantized, Quire decodes: its levels in place of mlx-vlm's.
    values = page.decode(page.import_arrays("v", arrays))[1]
    compare_rotated(values, arrays, np.array(codec.codebook), bits, NORM)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name, bits", PROD)
def test_prod_round_trip(turboquant, name, bits, dim):
    codec = turboquant._TurboQuantProdCodec(dim, bits, 0)
    check_round_trip(page_of(name, dim), "k", quantized(codec, rows(dim, 2)))


def unpack_stream(words, bits, dim):
    """Little-endian bit stream in u32: code i at bit i * bits."""
    stream = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : dim * bits]
    return stream.reshape(len(words), dim, bits) @ (1 << np.arange(bits))


def our_book(bits, dim):
    return (UNIT[bits] * LEVELS[bits]).astype(np.float64) / np.sqrt(dim)


def compare_rotated(values, arrays, book, bits, norm_error):
    """Quire's values against mlx-vlm's norm * codebook[index], in rotated space, with Quire's own table and with
    mlx-vlm's. norm_error is that of the page's norms against those in `arrays`."""
    dim = values.shape[1]
    rotated = quire_page.Rotation(dim).forward(values).astype(np.float64)
    norms = arrays["norms"].astype(np.float64)[:, None]
    index = unpack_stream(arrays["codes"], bits, dim)
    ours, book = our_book(bits, dim), book.astype(np.float64)
    tolerance = norm_error * np.abs(ours) + FP32
    assert (np.abs(rotated - norms * ours[index]) <= norms * tolerance[index]).all()
    # mlx-vlm's table is for the Beta law of dimension D, ours for its limit, the normal law: they differ by O(1/D),
    # most in the outermost level (3.1/D of it for 4 bits, where mlx-vlm's iteration also stops a little early).
    difference = np.abs(book - ours)
    assert difference.max() <= 3.5 / dim * book.max()
    assert (np.abs(rotated - norms * book[index]) <= norms * (difference + tolerance)[index]).all()


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name, bits", MSE)
def test_mse_means_the_same(turboquant, name, bits, dim):
    """A page of Quire's, exported, and mlx-vlm's own unpacking and codebook."""
    codec = turboquant._TurboQuantMSECodec(dim, bits, 0)
    page = page_of(name, dim)
    x = rows(dim, 3)
    packed = page.encode(x, x[::-1])
    for side, values in zip("kv", page.decode(packed)):
        arrays = page.export_arrays(side, packed)
        theirs = np.array(turboquant._unpack_lowbit(mx.array(arrays["codes"]), bits, dim))
        assert np.array_equal(theirs, unpack_stream(arrays["codes"], bits, dim))
        if side == "k":  # fp32 rounds the sum with the mean: leave that to what is compared
            means = arrays["means"]
            assert np.array_equal(means, quire_page.f16(means)) and np.abs(means).max() > 0.1
            assert np.array_equal(page.export_arrays(side, page.import_arrays(side, arrays))["means"], means)
            values = page.decode(page.import_arrays(side, {**arrays, "means": 0 * means}))[0]
            assert np.array_equal(page.decode(packed)[0], values + means)
        compare_rotated(values, arrays, np.array(codec.codebook), bits, 0)
        # With the rotation taken out, mlx-vlm's dequantize is the same numbers as the formula compared above.
        state = turboquant.TurboQuantMSEState(mx.array(arrays["norms"]), mx.array(arrays["codes"]))
        dequantized = codec._rotate_forward(codec.dequantize(state))
        formula = arrays["norms"][:, None] * np.array(codec.codebook)[theirs]
        assert np.abs(np.array(dequantized) - formula).max() <= 1e-5 * arrays["norms"].max()


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name, bits", PROD)
def test_prod_means_the_same(turboquant, name, bits, dim):
    """mlx-vlm: norm * (codebook[index] + sqrt(pi/2)/D * residual norm * S^T signs), the rows of S of length sqrt(D).
    Quire's S is orthogonal, so sqrt(D) S stands for mlx-vlm's."""
    page = page_of(name, dim)
    x = rows(dim, 4)
    packed = page.encode(x, x)
    values = page.decode(packed)[0]
    arrays = page.export_arrays("k", packed)
    mse_bits = bits - 1
    index = unpack_stream(arrays["codes"], mse_bits, dim)
    signs = 2 * unpack_stream(arrays["signs"], 1, dim) - 1

    codec = turboquant._TurboQuantProdCodec(dim, bits, 0)
    projection = quire_page.Rotation(dim, 4).forward(np.eye(dim, dtype=F)).T.astype(np.float64) * np.sqrt(dim)
    norms, residuals = (arrays[n].astype(np.float64)[:, None] for n in ("norms", "residual_norms"))
    sketch = codec.scale * residuals * (signs @ projection)
    expected = norms * (our_book(mse_bits, dim)[index] + sketch)
    rotated = quire_page.Rotation(dim).forward(values)
    # Norms are exported from the fp16 that the page holds, so that only fp32 rounding is left.
    assert (np.abs(rotated - expected) <= FP32 * norms).all()

    book = np.array(codec.mse_codec.codebook)
    difference = np.abs(book - our_book(mse_bits, dim)).max()
    assert (np.abs(rotated - norms * (book[index] + sketch)) <= norms * (difference + FP32)).all()
