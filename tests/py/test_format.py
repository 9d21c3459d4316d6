"""The library against quire_page.py, which was written from docs/FORMAT.md alone: sizes, values and bytes."""

import re
from pathlib import Path

import numpy as np
import pytest

import quire_lib
import quire_page
from conftest import full_sweep
from quire_page import AFFINE, BOTH, K_CODECS, KINDS, T, V_CODECS, F

DIMS = [32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 576]
# Every codec on every side it serves, two sides at a time.
PAIRS = [(c, c) for c in BOTH] + [
    ("kc8", "vt8"),
    ("kc4", "vt4"),
    ("kc3", "vt3"),
    ("kc2", "vt2"),
    ("km4", "vt4"),
    ("km3", "vt3"),
    ("tqp4", "vt4"),
    ("tqp3", "vt3"),
]


def uses_raw(codec):
    return codec == "raw" or codec in AFFINE


def cases():
    """(K, V, raw): the raw type is varied where it changes the record."""
    for k, v in PAIRS:
        for raw in ("f16", "bf16", "f32") if uses_raw(k) or uses_raw(v) else ("f16",):
            yield k, v, raw


CASES = [pytest.param(*c, id="-".join(c)) for c in cases()]


def dims_of(k, v):
    """(DK, DV) that both codecs serve: equal ones, and three that differ."""
    for dk, dv in [(d, d) for d in DIMS] + [(192, 128), (576, 512), (64, 256)]:
        if quire_page.supports(k, dk) and quire_page.supports(v, dv):
            yield dk, dv


def rows(kind, dim, rng):
    x = rng.standard_normal((T, dim)).astype(F)
    if kind == "normal":
        return x
    if kind == "constant":
        return np.full((T, dim), F(0.7321))
    if kind == "constant by channel":  # a range of 0 beside a zero point
        return np.broadcast_to(x[0], (T, dim)).copy()
    if kind == "outlier channel":
        x[:, dim // 3] = 60 + x[:, dim // 3]
        return x
    if kind == "outlier token":
        x[7] *= F(500)
        return x
    if kind == "tiny":  # scales are subnormal or zero in fp16
        return x * F(1e-6)
    if kind == "vanishing":  # around the smallest normal fp32: reciprocals would overflow
        return x * F(3e-38)
    if kind == "large":
        return x * F(1e4)
    if kind == "largest":  # what fp16 parameters can just hold
        return np.where(x < 0, F(-65504), F(65504))
    if kind == "zeros":
        return np.zeros((T, dim), F)
    if kind == "signed zeros":
        return np.where(x < 0, F(-0.0), F(0))
    if kind == "alternating":
        return np.where(np.add.outer(np.arange(T), np.arange(dim)) % 2, F(-1.5), F(1.5))
    assert kind == "grid"  # many ties and equal maxima
    return (rng.integers(-16, 17, (T, dim)) / 16).astype(F)


ROWS = [
    "normal",
    "constant",
    "constant by channel",
    "outlier channel",
    "outlier token",
    "tiny",
    "vanishing",
    "large",
    "largest",
    "zeros",
    "signed zeros",
    "alternating",
    "grid",
]


def assert_same_bits(got, expected, what):
    for side, a, b in zip("KV", got, expected):
        assert a.dtype == b.dtype == F and a.shape == b.shape
        wrong = np.argwhere(a.view(np.uint32) != b.view(np.uint32))
        if len(wrong):
            at = tuple(wrong[0])
            pytest.fail(f"{what} {side}: {len(wrong)} values differ, first at {at}: {a[at]!r} for {b[at]!r}")


def assert_same_bytes(got, expected, record, what):
    wrong = np.flatnonzero(got != expected)
    if len(wrong):
        at = wrong[0]
        names = ["K codes", "K signs", "K parameters", "V codes", "V signs", "V parameters"]
        where = [n for n, s in zip(names, record.sections) if s.start <= at < s.stop] or ["padding"]
        pytest.fail(
            f"{what}: {len(wrong)} bytes differ, first at {at} ({where[0]}): "
            f"library {got[at]:#04x}, document {expected[at]:#04x}"
        )


def test_codec_list():
    for name, info in quire_lib.CODECS.items():
        assert info.for_k == (name in K_CODECS), name
        assert info.for_v == (name in V_CODECS), name
        if name in AFFINE:
            assert (info.bits, info.group) == AFFINE[name]
    assert set(quire_lib.CODECS) == set(K_CODECS) | set(V_CODECS)


def test_presets_are_policies():
    presets = quire_lib.presets()
    assert "k8v4" in presets and "none" in presets
    names = {info.codec: name for name, info in quire_lib.CODECS.items()}
    raw = quire_lib.CODECS["raw"].codec
    for name, preset in presets.items():
        policy = quire_lib.policy(name)
        assert (policy.pair.k, policy.pair.v) == (preset.pair.k, preset.pair.v)
        assert policy.sinks == preset.sinks
        assert (policy.windowed.k, policy.windowed.v) == (raw, raw)
        pair = quire_lib.policy(f"{names[preset.pair.k]}:{names[preset.pair.v]}")
        assert bytes(pair) == bytes(policy), name
    for text, status in [
        ("vt4:vt4", quire_lib.E_UNSUPPORTED),
        ("kc4:kc4", quire_lib.E_UNSUPPORTED),
        ("kc4", quire_lib.E_UNKNOWN),
        ("kc4:vt5", quire_lib.E_UNKNOWN),
        ("", quire_lib.E_UNKNOWN),
    ]:
        with pytest.raises(quire_lib.QuireError) as error:
            quire_lib.policy(text)
        assert error.value.status == status, text


def test_unsupported_shapes():
    def status(k, v, dk, dv):
        try:
            quire_lib.Page(k, v, dk, dv)
        except quire_lib.QuireError as error:
            return error.status
        return quire_lib.OK

    for codec in quire_lib.CODECS:
        for dim in DIMS:
            fits = quire_page.supports(codec, dim)
            for ok, args in [
                (fits and codec in K_CODECS, (codec, "raw", dim, 64)),
                (fits and codec in V_CODECS, ("raw", codec, 64, dim)),
            ]:
                assert status(*args) == (quire_lib.OK if ok else quire_lib.E_UNSUPPORTED), args
        for dim in (-64, 0, 16, 40, 72, 592, 1024):
            for args in [(codec, "raw", dim, 64), ("raw", codec, 64, dim)]:
                assert status(*args) == quire_lib.E_UNSUPPORTED, args


@pytest.mark.parametrize("k_codec, v_codec, raw", CASES)
def test_bytes_and_values(k_codec, v_codec, raw):
    """Outside of test-all each kind of rows has sinks in every other size, and each size with every other kind."""
    rng = np.random.default_rng(1)
    for i, (dk, dv) in enumerate(dims_of(k_codec, v_codec)):
        record = quire_page.Record(k_codec, v_codec, dk, dv, raw)
        page = quire_lib.Page(k_codec, v_codec, dk, dv, raw)
        assert page.n_bytes == record.n_bytes, (dk, dv)
        for j, kind in enumerate(ROWS):
            k, v = rows(kind, dk, rng), rows(kind, dv, rng)
            for skip in (0, 4) if full_sweep() else (4 * ((i + j) % 2),):
                what = f"{k_codec}:{v_codec} {dk}/{dv} {raw} {kind} skip {skip}"
                got = page.encode(k, v, skip)
                assert_same_bytes(got, record.encode(k, v, skip), record, what)
                assert_same_bits(page.decode(got), record.decode(got), what)


def test_any_pair():
    """The two sides do not know of each other: codecs and sizes at random."""
    rng = np.random.default_rng(7)
    for _ in range(150):
        k_codec, v_codec = str(rng.choice(K_CODECS)), str(rng.choice(V_CODECS))
        sizes = [[d for d in range(32, 577, 16) if quire_page.supports(c, d)] for c in (k_codec, v_codec)]
        dk, dv = (int(rng.choice(s)) for s in sizes)
        raw, skip = str(rng.choice(["f16", "bf16", "f32"])), int(rng.integers(0, 9))
        what = f"{k_codec}:{v_codec} {dk}/{dv} {raw} skip {skip}"
        record = quire_page.Record(k_codec, v_codec, dk, dv, raw)
        page = quire_lib.Page(k_codec, v_codec, dk, dv, raw)
        assert page.n_bytes == record.n_bytes, what
        k, v = rows("normal", dk, rng), rows("normal", dv, rng)
        got = page.encode(k, v, skip)
        assert_same_bytes(got, record.encode(k, v, skip), record, what)
        assert_same_bits(page.decode(got), record.decode(got), what)


@pytest.mark.parametrize("k_codec, v_codec", PAIRS)
def test_every_skip(k_codec, v_codec):
    """Up to all 64 tokens may be sinks; then the record is zero, parameters of channels included."""
    rng = np.random.default_rng(2)
    record = quire_page.Record(k_codec, v_codec, 128, 128)
    page = quire_lib.Page(k_codec, v_codec, 128, 128)
    k, v = rows("normal", 128, rng), rows("normal", 128, rng)
    for skip in (1, 15, 33, 63, 64):
        k[:skip], v[:skip] = np.nan, np.inf  # skipped rows are not looked at
        what = f"{k_codec}:{v_codec} skip {skip}"
        got = page.encode(k, v, skip)
        assert_same_bytes(got, record.encode(k, v, skip), record, what)
        assert_same_bits(page.decode(got), record.decode(got), what)
    assert not got.any()
    for skip in (-1, 65):
        with pytest.raises(quire_lib.QuireError) as error:
            page.encode(k, v, skip)
        assert error.value.status == quire_lib.E_INVALID


def random_finite(kind, n, rng):
    """n random bit patterns of that type, as bytes. fp32 and bf16 stay below 2^100, so that nothing overflows."""
    if kind == "f16":
        bits = rng.integers(0, 1 << 16, n).astype(np.uint16)
        bits[(bits & 0x7C00) == 0x7C00] &= 0xBFFF
        return bits.astype("<u2").view(np.uint8)
    bits = rng.integers(0, 1 << 32, n, dtype=np.uint32)
    exponent = bits >> 23 & 255
    bits = np.where(exponent >= 227, bits & np.uint32(0xBFFFFFFF), bits)
    return bits.astype("<u4").view(np.uint8) if kind == "f32" else (bits >> 16).astype("<u2").view(np.uint8)


@pytest.mark.parametrize("k_codec, v_codec, raw", CASES)
def test_any_bits_decode(k_codec, v_codec, raw):
    """Pages that no encoder makes: every code, every finite parameter."""
    rng = np.random.default_rng(3)
    for dk, dv in dims_of(k_codec, v_codec):
        record = quire_page.Record(k_codec, v_codec, dk, dv, raw)
        page = quire_lib.Page(k_codec, v_codec, dk, dv, raw)
        for _ in range(2):
            bits = np.zeros(record.n_bytes, np.uint8)
            for side, sections in ((record.k, record.sections[:3]), (record.v, record.sections[3:])):
                codes, signs, params = sections
                if side.kind:
                    bits[codes] = random_finite(side.kind, T * side.dim, rng)
                    continue
                for section in (codes, signs):
                    bits[section] = rng.integers(0, 256, section.stop - section.start)
                data = [random_finite(kind, int(np.prod(shape)), rng) for kind, shape in side.family.params()]
                bits[params] = np.concatenate(data)
            assert_same_bits(page.decode(bits), record.decode(bits), f"{k_codec}:{v_codec} {dk}/{dv} {raw}")


@pytest.mark.parametrize("k_codec, v_codec, raw", CASES)
def test_what_cannot_be_stored(k_codec, v_codec, raw):
    """Refused with E_VALUE before anything is written; the largest value that fits is not refused."""
    record = quire_page.Record(k_codec, v_codec, 128, 128, raw)
    page = quire_lib.Page(k_codec, v_codec, 128, 128, raw)
    good = rows("normal", 128, np.random.default_rng(4))

    def limit(codec):
        kind = raw if codec in AFFINE else "f16"
        if codec in KINDS:
            kind = KINDS[codec] or raw
            return F(65504) if kind == "f16" else None
        return F(65504) if kind == "f16" else F(2.0**104)

    for side, codec in (("k", k_codec), ("v", v_codec)):
        most = limit(codec)
        above = [] if most is None else [np.nextafter(most, F(np.inf)), -np.nextafter(most, F(np.inf))]
        for value in [np.nan, np.inf, -np.inf, *above]:
            bad = good.copy()
            bad[9, 70] = value
            memory = quire_lib.zeros_aligned(page.n_bytes)
            memory[:] = 0xA5
            with pytest.raises(quire_lib.QuireError) as error:
                page.encode(bad if side == "k" else good, bad if side == "v" else good, 0, memory)
            assert error.value.status == quire_lib.E_VALUE
            assert (memory == 0xA5).all(), f"{codec} wrote before it refused {value}"
        for value in [] if most is None else [most, -most]:
            edge = good.copy()
            edge[9, 70] = value
            k, v = edge if side == "k" else good, edge if side == "v" else good
            got = page.encode(k, v)
            assert_same_bytes(got, record.encode(k, v), record, f"{codec} {value}")
            assert all(np.isfinite(x).all() for x in page.decode(got))


# ---------------------------------------------------------------- section 8


def size_table():
    """[(K, V, D, bytes, bits as printed)] of the document; None for a dash."""
    text = (Path(__file__).parents[2] / "docs" / "FORMAT.md").read_text()
    lines = text.split("\n## 8.")[1].split("\n## ")[0].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    dims = [int(cell.removeprefix("D ")) for cell in table[0][1:]]
    for names, *cells in table[2:]:
        for pair in names.split(", "):
            for dim, cell in zip(dims, cells, strict=True):
                found = re.fullmatch(r"(\d+) B (\d+\.\d+)", cell)
                assert found or cell == "-", cell
                yield *pair.split(":"), dim, (int(found[1]), found[2]) if found else None


def test_size_table():
    table = list(size_table())
    assert len(table) >= 70
    for k, v, dim, entry in table:
        if entry is None:
            with pytest.raises(quire_lib.QuireError) as error:
                quire_lib.Page(k, v, dim, dim)
            assert error.value.status == quire_lib.E_UNSUPPORTED
            with pytest.raises(ValueError):
                quire_page.Record(k, v, dim, dim)
            continue
        n_bytes, bits = entry
        assert quire_lib.Page(k, v, dim, dim).n_bytes == n_bytes, (k, v, dim)
        assert quire_page.Record(k, v, dim, dim).n_bytes == n_bytes, (k, v, dim)
        assert f"{n_bytes * 8 / (2 * T * dim):.3f}" == bits, (k, v, dim)


def test_codes_fill_their_section():
    """Section 1: no padding bit inside a code section, and no bit used twice, for any width and head size."""
    for dim in range(32, 577, 16):
        for layout, widths in ((quire_page.k_layout, (8, 4, 3, 2, 1)), (quire_page.v_layout, (8, 4, 3, 2))):
            for bits in widths:
                ones = np.full((T, dim), (1 << bits) - 1)
                section = quire_page.pack(ones, layout(dim, bits), T * dim * bits // 8)
                assert (section == 255).all(), (layout.__name__, dim, bits)


def test_mixed_codes_fill_their_section():
    """The same where channels have different widths: as many bits as those of one width."""
    for dim in range(32, 577, 16):
        for bits in (4, 3):
            widths = quire_page.mixed_widths(dim, bits)
            assert widths.sum() == dim * bits and (widths > bits).sum() == 8 * (dim // 32)
            ones = np.broadcast_to(2**widths - 1, (T, dim))
            section = quire_page.pack(ones, quire_page.mixed_layout(dim, bits), T * dim * bits // 8)
            assert (section == 255).all(), (dim, bits)


def test_rotation_is_orthogonal():
    for dim in DIMS:
        for first in (0, 4):
            r = quire_page.Rotation(dim, first)
            matrix = r.forward(np.eye(dim, dtype=F)).T
            # log2(D) additions per pass and four passes: a few roundings of 2^-24 on entries of at most 1
            assert np.abs(matrix @ matrix.T - np.eye(dim)).max() < 1e-5
            assert np.abs(r.inverse(np.eye(dim, dtype=F)).T - matrix.T).max() < 1e-6
    assert not np.array_equal(quire_page.sign_stream(0, 64), quire_page.sign_stream(4, 64))
