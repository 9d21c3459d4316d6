"""q8_0 and q4_0 against ggml's own quantizers, bit for bit."""

import ctypes as C
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import quire_lib
from quire_page import T, F

BLOCK = 32
CODECS = {"q8_0": 34, "q4_0": 18}  # bytes of a block


@pytest.fixture(scope="module")
def ggml():
    path = os.environ.get("QUIRE_GGML_QUANTS")
    if not path:
        script = Path(__file__).parents[2] / "tools" / "fetch-llama"
        path = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    # Lazy: the file names functions of the rest of ggml, which the row quantizers never call.
    lib = C.CDLL(path, mode=os.RTLD_LAZY)
    for codec in CODECS:
        for name in (f"quantize_row_{codec}_ref", f"dequantize_row_{codec}"):
            function = getattr(lib, name)
            function.restype, function.argtypes = None, [C.c_void_p, C.c_void_p, C.c_int64]
    return lib


def ggml_quantize(ggml, codec, x):
    """(n, D) to (n, D/32, bytes of a block)."""
    x = np.ascontiguousarray(x, F)
    out = np.zeros((len(x), x.shape[1] // BLOCK, CODECS[codec]), np.uint8)
    getattr(ggml, f"quantize_row_{codec}_ref")(x.ctypes.data, out.ctypes.data, x.size)
    return out


def ggml_dequantize(ggml, codec, blocks):
    out = np.zeros((len(blocks), blocks.shape[1] * BLOCK), F)
    getattr(ggml, f"dequantize_row_{codec}")(blocks.ctypes.data, out.ctypes.data, out.size)
    return out


def check(ggml, codec, x, what):
    """x: (n, 64, D), each one page; K takes it as it is, V the other way round."""
    dim = x.shape[-1]
    page = quire_lib.Page(codec, codec, dim, dim)
    for i, k in enumerate(x):
        v = k[::-1]
        packed = page.encode(k, v)
        copy = None
        for side, rows, values in zip("kv", (k, v), page.decode(packed)):
            expected = ggml_quantize(ggml, codec, rows)
            got = page.export_arrays(side, packed)["codes"]
            assert got.shape == expected.shape
            wrong = np.argwhere(got != expected)
            if len(wrong):
                t, block, byte = wrong[0]
                pytest.fail(
                    f"{codec} D {dim} {what} {side}: {len(wrong)} bytes of blocks differ, first in page {i} token {t} "
                    f"block {block} byte {byte}: {got[t, block, byte]} for ggml's {expected[t, block, byte]}"
                )
            # One product of the same two numbers: equal, not close.
            same = values.view(np.uint32) == ggml_dequantize(ggml, codec, expected).view(np.uint32)
            assert same.all(), f"{codec} D {dim} {what} {side}: {(~same).sum()} values differ"
            copy = page.import_arrays(side, {"codes": expected}, copy)
        assert np.array_equal(copy, packed), f"{codec} D {dim} {what}: ggml's blocks import to another page"


@pytest.mark.parametrize("codec", CODECS)
def test_random_rows(ggml, codec):
    """3 million elements, fp32 ones and ones that were fp16: with few bits, ties and equal maxima are common."""
    rng = np.random.default_rng(5)
    for dim in (64, 96, 128, 256):
        n = 1_500_000 // (T * dim * 4)
        x = rng.standard_normal((n, T, dim)).astype(F)
        x *= (10 ** rng.uniform(-6, 3.5, (n, T, 1))).astype(F)
        check(ggml, codec, x, "random")
        check(ggml, codec, x.astype(np.float16).astype(F), "fp16")
    # Sixteenths and eighths of the largest value: where q4_0 rounds.
    check(ggml, codec, (rng.integers(-32, 33, (8, T, 128)) / 32).astype(F), "grid")


@pytest.mark.parametrize("codec", CODECS)
def test_special_rows(ggml, codec):
    rng = np.random.default_rng(6)
    x = rng.standard_normal((T, 128)).astype(F)
    outlier = x.copy()
    outlier[:, 40] = 1000
    tie = np.where(rng.random((T, 128)) < 0.5, F(-3), F(3))  # the first of equal magnitudes decides q4_0's sign
    kinds = {
        "constant": np.repeat(x[:, :1], 128, axis=1),
        "huge": np.clip(x, -2, 2) * F(32752),
        "tiny": x * F(1e-6),
        "below fp16": x * F(1e-30),  # codes are there, the scale is 0
        "zero": np.zeros((T, 128), F),
        "signed zero": np.where(x < 0, F(-0.0), F(0)),
        "outlier": outlier,
        "tie": tie,
        "one": np.eye(T, 128, dtype=F),
    }
    for what, rows in kinds.items():
        check(ggml, codec, rows[None], what)
