"""A second decoder and encoder of Quire's pages, written from docs/FORMAT.md alone; sections are named as there.

numpy's float32 arithmetic rounds after each operation and fuses nothing, which is what the document asks for.
Constants are float32, so that no operation is promoted to float64.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

F = np.float32
T = 64
ALIGN, RECORD_ALIGN = 64, 128
F16_MAX = F(65504)


def round_up(n, to):
    return (n + to - 1) // to * to


# ---------------------------------------------------------------- element types


def bf16_bits(x):
    """float32 to bf16 bits, to nearest even (finite values)."""
    bits = np.ascontiguousarray(x, F).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def bf16_values(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(F)


def to_bytes(x, kind):
    """float32 values to the little-endian bytes of elements of that type."""
    if kind == "bf16":
        return bf16_bits(x).astype("<u2").view(np.uint8).ravel()
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(x.astype("<f4" if kind == "f32" else "<f2")).view(np.uint8).ravel()


def from_bytes(data, kind):
    if kind == "bf16":
        return bf16_values(data.view("<u2"))
    return data.view("<f4" if kind == "f32" else "<f2").astype(F)


def f16(x):
    """float32 rounded to fp16, as float32."""
    return x.astype(np.float16).astype(F)


TYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


# ---------------------------------------------------------------- 3, 4: where a code lies
# A layout is a list of pieces (byte, shift, width, low): bits `low` .. `low + width - 1` of the code of (t, d) are the
# bits from `shift` on of byte `byte`. byte and shift are arrays (T, D). One piece, but two for 3-bit codes. Where codes
# have different widths, `width` is an array too, 0 where a code does not have the piece.


def pieces(bits, byte, shift, top_byte=None, top_shift=None):
    if bits != 3:
        return [(byte, shift, bits, 0)]
    return [(byte, shift, 2, 0), (top_byte, top_shift, 1, 2)]


@lru_cache(maxsize=None)
def k_layout(dim, bits):
    """Section 3."""
    t, d = np.arange(T)[:, None], np.arange(dim)[None, :]
    tile, r, row = t // 16, t % 16 // 2, t % 2
    octet, block = d // 8, d // 16
    hi = octet % 2
    j = d % 8 if bits == 8 else (d & 4) | (d & 1) << 1 | (d >> 1 & 1)

    def atom(n, s, x, p):
        cols = np.minimum(4, n - 4 * (x // 4))
        return ((x // 4) * 32 * s + p * 8 * cols + r * cols + x % 4) * 16

    def whole(a):
        return np.broadcast_to(a, (T, dim))

    inside = 8 * row + j
    if bits == 8:
        return pieces(8, tile * 16 * dim + atom(dim // 8, 1, octet, 0) + inside, whole(0))
    if bits == 4:
        return pieces(4, tile * 8 * dim + atom(dim // 16, 1, block, 0) + inside, whole(4 * hi))
    if bits == 2:
        return pieces(2, whole(atom(dim // 8, 1, octet, 0) + inside), whole(2 * tile))
    if bits == 1:
        return pieces(1, whole(atom(dim // 16, 1, block, 0) + inside), tile + 4 * hi)
    last = tile == 3
    low = atom(dim // 16, 3, block, np.where(last, hi, tile)) + inside
    top = atom(dim // 16, 3, block, np.where(last, 2, tile)) + inside
    return pieces(3, low, np.where(last, 6, 3 * hi), top, np.where(last, 6 + hi, 3 * hi + 2))


def mixed_widths(dim, bits):
    """Of every channel's code: the first D/32 blocks of 16 have 8 of a bit more, then 8 of a bit less."""
    d = np.arange(dim)
    return np.where(d // 16 < dim // 32, np.where(d % 16 < 8, bits + 1, bits - 1), bits)


@lru_cache(maxsize=None)
def mixed_layout(dim, bits):
    """Section 3, the lines of km4 and km3."""
    t, d = np.arange(T)[:, None], np.arange(dim)[None, :]
    plain = k_layout(dim, bits)
    mixed = np.broadcast_to(d // 16 < dim // 32, (T, dim))
    hi = np.broadcast_to(d // 8 % 2 == 1, (T, dim))
    widths = np.broadcast_to(mixed_widths(dim, bits), (T, dim))
    if bits == 4:
        byte, shift, _, _ = plain[0]
        return [(byte, np.where(mixed & hi, 5, shift), widths, 0)]
    last = np.broadcast_to(t >= 48, (T, dim))
    (low, low_shift, _, _), (top, top_shift, _, _) = plain
    # Plain codes are two bits, then one, wherever they lie. Mixed ones: all in their tile's atom, but in tile 3 two bits
    # of either octet's atom, and the other two of the wide ones on top of the third atom.
    first_width = np.where(mixed & ~last, widths, 2)
    second_width = np.where(mixed, np.where(last & ~hi, 2, 0), 1)
    return [(low, np.where(mixed & ~last & hi, 4, low_shift), first_width, 0),
            (top, np.where(mixed & last & ~hi, 6, top_shift), second_width, 2)]


def v_runs(n_tiles, most):
    """(first tile, tiles) of the runs: as many of `most` as fit, then halves."""
    first, m = 0, most
    while first < n_tiles:
        while n_tiles - first < m:
            m //= 2
        yield first, m
        first += m


@lru_cache(maxsize=None)
def v_layout(dim, bits):
    """Section 4."""
    shared = {8: 1, 4: 1, 2: 2, 3: 4}[bits]
    t, ch = np.arange(T)[:, None], np.arange(dim)[None, :]
    tile, r, row = ch // 16, ch % 16 // 2, ch % 2
    h, y, c = t // 32, t // 16 % 2, t % 16 // 4

    runs = [(f, m) for f, m in v_runs(dim // 16, shared) for _ in range(m)]  # of each tile
    f, m = (np.array(x)[tile] for x in zip(*runs))
    cols = 4 * m // shared
    z = (tile - f) + m * (c // cols)
    a = (r * cols + c % cols) * 16 + 8 * row + 4 * y + t % 4
    slab = 128 * cols
    start = f * 128 * bits
    if bits == 8:
        return pieces(8, start + h * slab + a, np.zeros_like(a))
    if bits == 4:
        return pieces(4, start + a, np.broadcast_to(4 * h, a.shape))
    if bits == 2:
        return pieces(2, start + a, 4 * z + 2 * h)
    last = z == 3
    low = start + np.where(last, h, z) * slab + a
    top = start + np.where(last, 2, z) * slab + a
    return pieces(3, low, np.where(last, 6, 3 * h), top, np.where(last, 6 + h, 3 * h + 2))


def unpack(section, layout):
    """The codes (T, D) of a code section, unsigned."""
    return sum((section[byte] >> shift & (1 << width) - 1) << low for byte, shift, width, low in layout)


def pack(codes, layout, n_bytes):
    out = np.zeros(n_bytes)
    for byte, shift, width, low in layout:
        part = (codes >> low & (1 << width) - 1) << shift
        out += np.bincount(byte.ravel(), part.ravel(), n_bytes)
    assert out.max(initial=0) < 256, "two codes share a bit"
    return out.astype(np.uint8)


# ---------------------------------------------------------------- 5: rotation


@lru_cache(maxsize=None)
def sign_stream(stream, dim):
    """(D) of bool: where a pass with this stream flips the sign."""
    mask = (1 << 64) - 1

    def word(n):
        z = n * 0x9E3779B97F4A7C15 & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    words = [word(16 * stream + w + 1) for w in range((dim + 63) // 64)]
    return np.array([words[i // 64] >> i % 64 & 1 for i in range(dim)], bool)


class Rotation:
    """R with the first stream 0, S with the first stream 4."""

    def __init__(self, dim, first_stream=0):
        self.dim = dim
        self.size = 1 << dim.bit_length() - 1
        self.norm = F(1) / np.sqrt(F(self.size))
        starts = [0] if dim == self.size else [0, dim - self.size, 0, dim - self.size]
        self.passes = [(o, first_stream + i) for i, o in enumerate(starts)]

    def _flip(self, part, o, stream):
        flips = sign_stream(stream, self.dim)[o : o + self.size]
        return np.where(flips, -part, part)

    def _butterflies(self, part):
        h = 1
        while h < self.size:
            pairs = part.reshape(len(part), self.size // (2 * h), 2, h)
            a, b = pairs[:, :, 0], pairs[:, :, 1]
            part = np.stack([a + b, a - b], axis=2).reshape(len(part), self.size)
            h *= 2
        return part * self.norm

    def forward(self, x):
        y = x.astype(F)
        for o, stream in self.passes:
            here = slice(o, o + self.size)
            y[:, here] = self._butterflies(self._flip(y[:, here], o, stream))
        return y

    def inverse(self, y):
        x = y.astype(F)
        for o, stream in reversed(self.passes):
            here = slice(o, o + self.size)
            x[:, here] = self._flip(self._butterflies(x[:, here]), o, stream)
        return x


# ---------------------------------------------------------------- 6, 7: values and codes
# A family has
#   params()       [(type, shape)] in the order of the parameter section; tokens, where there are any, are the last axis
#   values(u, p)   rows (T, D) from codes and parameters (float32 arrays)
#   codes(x)       codes (n, D) and parameters from n rows, none of them skipped
# Codes here are as sections 6 and 7 use them: signed for 8 bits, a8's 0..255.

LEVELS = {2: [12, 40], 3: [10, 31, 55, 88], 4: [5, 15, 25, 36, 48, 62, 79, 104]}  # positive half; mirrored below
UNIT = {2: F(0.03776044), 3: F(0.02445393), 4: F(0.02622447)}
EDGES = {
    2: [0.981599],
    3: [0.500550, 1.049957, 1.747927],
    4: [0.258222, 0.522404, 0.799550, 1.099286, 1.437139, 1.843532, 2.400803],
}
LEVELS = {b: np.array([-x for x in half[::-1]] + half, F) for b, half in LEVELS.items()}
EDGES = {b: np.array([-x for x in half[::-1]] + [0.0] + half, F) for b, half in EDGES.items()}
STEP = {2: F(0.9955), 3: F(0.5860), 4: F(0.3350), 8: F(0.031)}
SQRT_HALF_PI = F(np.sqrt(np.pi / 2))


def sumsq(y):
    """(n) of rows (n, D): 16 lanes, then halves."""
    lanes = np.zeros((len(y), 16), F)
    for i in range(0, y.shape[1], 16):
        lanes = lanes + y[:, i : i + 16] * y[:, i : i + 16]
    for half in (8, 4, 2, 1):
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def inverse_or_0(x, above=0.0):
    """1/x, and 0 where the magnitude of x is not above the given limit."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(np.abs(x) > F(above), F(1) / x, F(0))


def mid(bits):
    return F(0) if bits == 8 else F(((1 << bits) - 1) / 2)


def clamp_code(x, bits):
    low, high = (-127, 127) if bits == 8 else (0, (1 << bits) - 1)
    return np.clip(np.rint(x), low, high).astype(np.int64)


@dataclass(frozen=True)
class Channel:
    bits: int
    dim: int

    def params(self):
        return [("f16", (self.dim,)), ("f16", (self.dim,))]

    def values(self, u, p):
        scale, zero = p
        return zero + scale * (u.astype(F) - self.middles())

    def middles(self):
        return mid(self.bits)

    def steps(self):
        return F(254 if self.bits == 8 else (1 << self.bits) - 1)

    def codes(self, x):
        if not len(x):  # every token skipped: no statistic at all
            return np.zeros(x.shape, np.int64), [np.zeros(self.dim, F)] * 2
        top, bottom = x.max(axis=0), x.min(axis=0)
        scale = f16((top - bottom) / self.steps())
        zero = f16((top + bottom) * F(0.5) + F(0))  # never -0, whichever zero max and min choose
        u = (x - zero) * inverse_or_0(scale) + self.middles()
        return self.clamp(u), [scale, zero]

    def clamp(self, u):
        return clamp_code(u, self.bits)


class Mixed(Channel):
    """Rows are in the order of the record: which channel stands where is for whoever has the order."""

    def middles(self):
        return (self.steps() / F(2)).astype(F)

    def steps(self):
        return (2.0 ** mixed_widths(self.dim, self.bits) - 1).astype(F)

    def clamp(self, u):
        return np.minimum(np.maximum(np.rint(u), 0), self.steps()).astype(np.int64)


@dataclass(frozen=True)
class Rotated:
    bits: int
    dim: int

    @cached_property
    def rotation(self):
        return Rotation(self.dim)

    def params(self):
        return [("f16", (T,))]

    def rms(self, total):
        return np.sqrt(total / F(self.dim))


class Uniform(Rotated):
    def values(self, u, p):
        y = (p[0] * STEP[self.bits])[:, None] * (u.astype(F) - mid(self.bits))
        return self.rotation.inverse(y)

    def codes(self, x):
        y = self.rotation.forward(x)
        if self.bits == 8:
            return self.fit(y, np.abs(y).max(axis=1) / (F(127) * STEP[8]))[:2]
        rms = self.rms(sumsq(y))
        tried = [self.fit(y, rms * F(m)) for m in (0.85, 0.90, 0.95, 1.0, 1.05, 1.10, 1.15)]
        best = np.argmin([error for _, _, error in tried], axis=0)  # the first of equals
        pick = lambda parts: np.stack(parts)[best, np.arange(len(y))]  # noqa: E731
        return pick([codes for codes, _, _ in tried]), [pick([scale for _, [scale], _ in tried])]

    def fit(self, y, scale):
        scale = f16(np.minimum(scale, F16_MAX))
        step = scale * STEP[self.bits]
        codes = clamp_code(y * inverse_or_0(step, 1e-30)[:, None] + mid(self.bits), self.bits)
        return codes, [scale], sumsq(y - step[:, None] * (codes.astype(F) - mid(self.bits)))


class Book(Rotated):
    def nearest(self, y, inv):
        return np.searchsorted(EDGES[self.bits], y * inv[:, None], side="left")  # the number of edges below

    def values(self, u, p):
        y = (p[0] * UNIT[self.bits])[:, None] * LEVELS[self.bits][u]
        return self.rotation.inverse(y)

    def codes(self, x):
        y = self.rotation.forward(x)
        total = sumsq(y)
        u = self.nearest(y, inverse_or_0(self.rms(total), 1e-30))
        squares = (LEVELS[self.bits][u].astype(np.int64) ** 2).sum(axis=1).astype(F)
        scale = np.sqrt(total / squares) / UNIT[self.bits]
        return u, [f16(np.minimum(scale, F16_MAX))]


class CentredBook(Book):
    """K: the mean of the page's rows is taken off, and kept in the channels' own space."""

    def params(self):
        return [("f16", (T,)), ("f16", (self.dim,))]

    def values(self, u, p):
        return super().values(u, p[:1]) + p[1]

    def codes(self, x):
        total = np.zeros(self.dim, F)
        for row in x:  # in this order, whatever numpy's sum would do
            total = total + row
        mean = f16(total / F(max(len(x), 1)))
        u, [scale] = super().codes(x - mean)
        return u, [scale, mean]


class Prod(Book):
    """bits is the width of the code section. The signs are a third array of codes()."""

    @cached_property
    def projection(self):
        return Rotation(self.dim, 4)

    def params(self):
        return [("f16", (T,)), ("f16", (T,))]

    def values(self, u, p, signs):
        scale, residual = p
        v = (residual * SQRT_HALF_PI)[:, None]
        w = self.projection.inverse(np.where(signs == 0, -v, v))
        y = scale[:, None] * (UNIT[self.bits] * LEVELS[self.bits][u] + w)
        return self.rotation.inverse(y)

    def codes(self, x):
        y = self.rotation.forward(x)
        rms = self.rms(sumsq(y))
        inv = inverse_or_0(rms, 1e-30)
        u = self.nearest(y, inv)
        e = y * inv[:, None] - UNIT[self.bits] * LEVELS[self.bits][u]
        signs = (self.projection.forward(e) >= 0).astype(np.int64)
        return u, [f16(rms), f16(self.rms(sumsq(e)))], signs


@dataclass(frozen=True)
class Affine:
    bits: int
    dim: int
    group: int
    raw: str

    def params(self):
        shape = (self.dim // self.group, T)
        return [(self.raw, shape), (self.raw, shape)]

    def values(self, u, p):
        scale, bias = (np.repeat(x.T, self.group, axis=1) for x in p)
        return scale * u.astype(F) + bias

    def codes(self, x):
        n = F((1 << self.bits) - 1)
        x = x.reshape(len(x), self.dim // self.group, self.group)
        top, bottom = x.max(axis=2), x.min(axis=2)
        s = np.maximum((top - bottom) / n, F(1e-7))
        below = np.abs(bottom) > np.abs(top)
        edge = np.where(below, bottom, top)
        s = np.where(below, s, -s)
        q0 = np.rint(edge / s)
        with np.errstate(divide="ignore", invalid="ignore"):
            s = np.where(q0 != 0, edge / q0, s)
        bias = np.where(q0 != 0, edge, F(0))
        u = np.clip(np.rint((x - bias[..., None]) / s[..., None]), 0, n)
        return u.reshape(len(x), self.dim).astype(np.int64), [s.T, bias.T]


@dataclass(frozen=True)
class Block:
    bits: int
    dim: int

    def params(self):
        return [("f16", (self.dim // 32, T))]

    def values(self, u, p):
        scale = np.repeat(p[0].T, 32, axis=1)
        return scale * (u if self.bits == 8 else u - 8).astype(F)

    def codes(self, x):
        x = x.reshape(len(x), self.dim // 32, 32)
        first = np.abs(x).argmax(axis=2)[..., None]  # argmax takes the first of equals
        largest = np.take_along_axis(x, first, axis=2)
        largest = np.where(largest == 0, F(0), largest)  # nothing is larger than 0: +0, never -0
        if self.bits == 8:
            s = np.abs(largest) / F(127)
            scaled = x * inverse_or_0(s, 1e-37)
            # Adding 0.5 is exact in float64, so that floor gives half away from zero.
            u = np.copysign(np.floor(np.abs(scaled).astype(np.float64) + 0.5), scaled)
        else:
            s = largest / F(-8)
            # fma in float64: the product of two fp32 values is exact there. The sum with 8.5 is exact as well where it
            # matters: it comes near an integer only when the product is at least 1/4 in magnitude (a last bit of 2^-49
            # or more), and it stays below 2^4, so 53 bits hold it and it is rounded once, to fp32.
            u = (x.astype(np.float64) * inverse_or_0(s, 1e-37).astype(np.float64) + 8.5).astype(F)
            u = np.minimum(15, np.trunc(u))
        return u.reshape(len(x), self.dim).astype(np.int64), [s[..., 0].T]


# ---------------------------------------------------------------- 2: codecs

KINDS = {"raw": None, "f32": "f32", "f16": "f16", "bf16": "bf16"}
CHANNEL = {f"kc{b}": b for b in (8, 4, 3, 2)}
MIXED = {"km4": 4, "km3": 3}
UNIFORM = {f"vt{b}": b for b in (8, 4, 3, 2)}
BOOK = {f"tq{b}": b for b in (4, 3, 2)}
PROD = {"tqp4": 3, "tqp3": 2}
AFFINE = {f"a{b}{'' if g == 64 else f'g{g}'}": (b, g) for b in (8, 4, 2) for g in (32, 64, 128)}
BLOCK = {"q8_0": 8, "q4_0": 4}
BOTH = [*KINDS, "vt8", *BOOK, *AFFINE, *BLOCK]
K_CODECS = [*BOTH, *CHANNEL, *MIXED, *PROD]
V_CODECS = [*BOTH, "vt4", "vt3", "vt2"]


def supports(codec, dim):
    group = AFFINE[codec][1] if codec in AFFINE else 32 if codec in BLOCK else 1
    return dim % group == 0


def family(side, codec, dim, raw):
    if codec in CHANNEL:
        return Channel(CHANNEL[codec], dim)
    if codec in MIXED:
        return Mixed(MIXED[codec], dim)
    if codec in UNIFORM:
        return Uniform(UNIFORM[codec], dim)
    if codec in BOOK:
        return (CentredBook if side == "k" else Book)(BOOK[codec], dim)
    if codec in PROD:
        return Prod(PROD[codec], dim)
    if codec in AFFINE:
        return Affine(AFFINE[codec][0], dim, AFFINE[codec][1], raw)
    return Block(BLOCK[codec], dim)


class Side:
    """The sections of one side: codes, signs (K of tqp only), parameters."""

    def __init__(self, side, codec, dim, raw):
        if codec not in (K_CODECS if side == "k" else V_CODECS) or not supports(codec, dim):
            raise ValueError(f"{codec} cannot serve {side} of {dim}")
        self.codec, self.dim = codec, dim
        self.kind = (KINDS[codec] or raw) if codec in KINDS else None
        if self.kind:
            self.sizes = [T * dim * TYPE_BYTES[self.kind], 0, 0]
            return
        self.family = family(side, codec, dim, raw)
        bits = self.family.bits
        self.layout = (mixed_layout if codec in MIXED else k_layout if side == "k" else v_layout)(dim, bits)
        self.sign_layout = k_layout(dim, 1) if codec in PROD else None
        params = sum(TYPE_BYTES[kind] * int(np.prod(shape)) for kind, shape in self.family.params())
        self.sizes = [T * dim * bits // 8, T * dim // 8 if codec in PROD else 0, params]

    def decode(self, codes, signs, params):
        if self.kind:
            return from_bytes(codes, self.kind).reshape(T, self.dim)
        u = unpack(codes, self.layout).astype(np.int64)
        if self.family.bits == 8:
            u = u.astype(np.uint8).view(np.int8).astype(np.int64)
            if self.codec in AFFINE:
                u += 128
        p, at = [], 0
        for kind, shape in self.family.params():
            n = TYPE_BYTES[kind] * int(np.prod(shape))
            p.append(from_bytes(params[at : at + n], kind).reshape(shape))
            at += n
        if self.codec in PROD:
            return self.family.values(u, p, unpack(signs, self.sign_layout))
        return self.family.values(u, p)

    def encode(self, x, skip):
        """The bytes of the three sections."""

        def all_tokens(a, axis):
            """Zeros for the skipped tokens."""
            width = [(0, 0)] * a.ndim
            width[axis] = (skip, 0)
            return np.pad(a, width)

        x = np.ascontiguousarray(x[skip:], F)
        if self.kind:
            return [to_bytes(all_tokens(x, 0), self.kind), np.zeros(0, np.uint8), np.zeros(0, np.uint8)]
        u, p, *signs = self.family.codes(x)
        if self.family.bits == 8:
            u = (u - 128 if self.codec in AFFINE else u) & 255
        codes = pack(all_tokens(u, 0), self.layout, self.sizes[0])
        sign_bytes = pack(all_tokens(signs[0], 0), self.sign_layout, self.sizes[1]) if signs else np.zeros(0, np.uint8)
        out = []
        for (kind, shape), value in zip(self.family.params(), p):
            out.append(to_bytes(value if value.shape == shape else all_tokens(value, -1), kind))
        return [codes, sign_bytes, np.concatenate(out)]


# ---------------------------------------------------------------- 1: record


class Record:
    def __init__(self, k_codec, v_codec, k_dim, v_dim, raw="f16"):
        self.k = Side("k", k_codec, k_dim, raw)
        self.v = Side("v", v_codec, v_dim, raw)
        self.sections, at = [], 0
        for size in self.k.sizes + self.v.sizes:  # V has no signs: a missing section takes no bytes
            self.sections.append(slice(at, at + size))
            at = round_up(at + size, ALIGN)
        self.n_bytes = round_up(at, RECORD_ALIGN)

    def decode(self, page):
        parts = [page[s] for s in self.sections]
        return self.k.decode(*parts[:3]), self.v.decode(*parts[3:])

    def encode(self, k, v, skip=0):
        page = np.zeros(self.n_bytes, np.uint8)
        for section, data in zip(self.sections, self.k.encode(k, skip) + self.v.encode(v, skip)):
            page[section] = data
        return page
