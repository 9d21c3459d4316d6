"""a8 a4 a2 against mlx.core.quantize, bit for bit."""

import mlx.core as mx
import numpy as np
import pytest

import quire_lib
from quire_page import AFFINE, T, F

DTYPES = {"f16": mx.float16, "bf16": mx.bfloat16, "f32": mx.float32}
DIMS = [64, 96, 128, 256]


def bits_of(array):
    """An mlx array's bits as numpy."""
    return np.array(array.view(mx.uint32 if array.itemsize == 4 else mx.uint16))


def in_type(x, dtype):
    """float32 rows and the same values as an mlx array of that type."""
    array = mx.array(np.ascontiguousarray(x)).astype(dtype)
    return np.array(array.astype(mx.float32)), array


def row_kinds(dim, raw, rng):
    x = rng.standard_normal((T, dim)).astype(F)
    huge = 3e4 if raw == "f16" else 1e30
    reach = (-7, 3.8) if raw == "f16" else (-30, 30)
    each = (10 ** rng.uniform(*reach, (2, T, 1))).astype(F)
    outlier = x.copy()
    outlier[:, dim // 3] *= F(100)
    mixed = x.copy()
    mixed[0::4], mixed[1::4] = np.abs(mixed[0::4]), -np.abs(mixed[1::4])  # |min| below, above and equal to |max|
    mixed[2::4] = np.where(mixed[2::4] < 0, F(-1.25), F(1.25))
    return {
        "random": x,
        "uniform": rng.uniform(-1, 1, (T, dim)).astype(F),
        "constant": np.repeat(x[:, :1], dim, axis=1),
        "huge": np.clip(x, -2, 2) * F(huge),
        "tiny": x * F(1e-6),
        "zero": np.where(x < 0, F(-0.0), F(0)),
        "magnitudes": x * each[0],
        "far from zero": np.clip(x * each[0] + each[1], -6e4, 6e4) if raw == "f16" else x * each[0] + each[1],
        "outlier": outlier,
        "mixed": mixed,
        "grid": (rng.integers(-20, 21, (T, dim)) / 8).astype(F),  # ties of the rounding
    }


def cases():
    for codec, (bits, group) in AFFINE.items():
        for raw in DTYPES:
            yield pytest.param(codec, bits, group, raw, id=f"{codec}-{raw}")


@pytest.mark.parametrize("codec, bits, group, raw", list(cases()))
def test_same_as_mlx(codec, bits, group, raw):
    rng = np.random.default_rng(bits * 1000 + group)
    for dim in DIMS:
        if dim % group:
            continue
        page = quire_lib.Page(codec, codec, dim, dim, raw)
        for kind, x in row_kinds(dim, raw, rng).items():
            k, k_mlx = in_type(x, DTYPES[raw])
            v, v_mlx = in_type(x[::-1], DTYPES[raw])
            packed = page.encode(k, v)
            values = page.decode(packed)
            copy = None
            for side, array, decoded in (("k", k_mlx, values[0]), ("v", v_mlx, values[1])):
                what = f"{codec} {raw} {dim} {kind} {side}"
                expected = mx.quantize(array, group_size=group, bits=bits)
                got = page.export_arrays(side, packed)
                for name, a in zip(("codes", "scales", "biases"), expected, strict=True):
                    a = bits_of(a)
                    assert a.shape == got[name].shape, what
                    wrong = np.argwhere(a != got[name])
                    assert not len(wrong), f"{what}: {len(wrong)} {name} differ, first at {wrong[0]}"
                copy = page.import_arrays(side, got, copy)
                check_values(decoded, expected, group, bits, what)
            assert np.array_equal(copy, packed), f"{codec} {raw} {dim} {kind}: import(export(page)) is another page"


def check_values(decoded, quantized, group, bits, what):
    """mlx may fuse scale * code + bias, Quire does not. The two then differ by the rounding of the product, at most
    2^-24 of it, and by the roundings of the two sums, at most 2^-24 of either: 2^-24 * (|product| + |x| + |x'|)."""
    codes, scales, biases = quantized
    wide = [a.astype(mx.float32) for a in (scales, biases)]
    expected = np.array(mx.dequantize(codes, *wide, group_size=group, bits=bits))
    assert expected.dtype == F and np.isfinite(decoded).all(), what
    product = np.abs(decoded.astype(np.float64) - np.repeat(np.array(wide[1]), group, axis=1))
    bound = 2.0**-24 * (product + np.abs(decoded) + np.abs(expected)) * (1 + 1e-6) + 2.0**-149
    error = np.abs(decoded.astype(np.float64) - expected)
    worst = np.unravel_index((error - bound).argmax(), error.shape)
    assert (error <= bound).all(), f"{what}: {decoded[worst]!r} for {expected[worst]!r} at {worst}"
