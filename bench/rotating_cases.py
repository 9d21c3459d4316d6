"""Quantized rotating caches, and K and V of different bits, case by case: Quire's library beside
mlx-lm's caches.

usage: rotating_cases.py [--build DIR] [--short] [CASE..]
Prints a JSON object: what each case compared and found. Needs the Python of tools/setup bench.

mlx-lm's RotatingKVCache says which tokens a query sees, mlx.core.quantize what a packed row is, and
numpy computes attention over both in fp64. Quire gets the same rows through its public API, with
mlx's formats as codecs (a8, a4, a2).
"""

import argparse
import json
import os
import pathlib
import tempfile

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products here are small
import numpy as np

import programs

HEADS, KV, DIM = 8, 2, 128
PAGE, GROUP = 64, 64
MAX_SIZE, KEEP = 128, 4
# Errors of attention relative to fp64 that are allowed, by the fewest bits of K and V: kernels round
# q and weights (docs/TESTING.md), and mlx rounds scale * code + bias to the type of the rows.
BOUNDS = {16: 5e-4, 8: 3e-3, 4: 2e-2, 2: 2e-2}
CODECS = {16: "raw", 8: "a8", 4: "a4", 2: "a2"}


def modules(build):
    """The test suite's binding of the library and its module for mlx-lm's caches."""
    programs.use_binding(build)
    import mlx.core
    import mlx_caches
    import quire_lib
    import quire_pool

    mlx.core.set_default_device(mlx.core.cpu)
    return mlx.core, mlx_caches, quire_lib, quire_pool


class Rows:
    """K, V and q of n tokens as the raw type holds them, and K and V as mlx packs them in some
    number of bits."""

    def __init__(self, mx, n, raw="f16", seed=1):
        random = np.random.default_rng(seed)
        dtype = {"f16": mx.float16, "bf16": mx.bfloat16}[raw]
        self.mx, self.n, self.raw = mx, n, raw
        self.k, self.v = (mx.array(random.standard_normal((n, KV, DIM)).astype(np.float32)).astype(dtype) for _ in "kv")
        self.q = random.standard_normal((n, HEADS, DIM)).astype(np.float32)

    def plain(self, side):
        return np.array(getattr(self, side).astype(self.mx.float32))

    def packed(self, side, bits):
        if bits == 16:
            return self.plain(side)
        packed = self.mx.quantize(getattr(self, side), group_size=GROUP, bits=bits)
        return np.array(self.mx.dequantize(*packed, group_size=GROUP, bits=bits).astype(self.mx.float32))


class Reference:
    """fp64 attention of query i over the tokens that mlx-lm's cache holds at that step. Rows of
    earlier pages are packed, those of the query's own page are raw: that is where Quire seals a
    page."""

    def __init__(self, attention, rows, bits):
        self.attention, self.rows = attention, rows
        self.sides = [(rows.plain(side), rows.packed(side, b)) for side, b in zip("kv", bits)]

    def step(self, i, seen):
        seen = np.array(sorted(seen))
        sealed = (seen // PAGE < i // PAGE)[:, None, None]
        k, v = (np.where(sealed, packed[seen], raw[seen]).transpose(1, 0, 2) for raw, packed in self.sides)
        return self.attention(self.rows.q[i], k, v)


class Ring:
    """mlx-lm's RotatingKVCache on rows that hold their own number: what it returns says which
    tokens are seen."""

    def __init__(self, mx, module, max_size, keep):
        self.mx, self.cache, self.n = mx, module.RotatingKVCache(max_size=max_size, keep=keep), 0

    def add(self, n):
        number = self.mx.arange(self.n, self.n + n, dtype=self.mx.float32).reshape(1, 1, n, 1)
        self.n += n
        keys, _ = self.cache.update_and_fetch(number, number)
        return {int(x) for x in np.array(keys).ravel()}


class Growing:
    """A cache without a limit."""

    n = 0

    def add(self, n):
        self.n += n
        return set(range(self.n))


def relative_error(got, wanted):
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted)
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


class Cases:
    def __init__(self, build, short, scratch):
        self.mx, self.mlx, self.lib, self.pools = modules(build)
        self.module = self.mlx.load_module()
        self.program, self.short, self.scratch = build / "bin/quire", short, scratch

    # ------------------------------------------------------------ attention over a cache

    def ring(self, max_size):
        return Ring(self.mx, self.module, max_size, KEEP) if max_size else Growing()

    def layer(self, bits, max_size, codecs=True):
        window, keep = (max_size - KEEP, KEEP) if max_size else (0, 0)
        k, v = (CODECS[b] for b in bits) if codecs else (None, None)
        return self.pools.layer_of(HEADS, KV, DIM, k=k, v=v, window=window, keep=keep)

    def prefill(self, pool, rows, ring, n):
        pool.create().step(*(rows.plain(side)[None, :n] for side in "kv"))
        ring.add(n)

    def decode(self, pool, rows, reference, ring, n):
        """Tokens up to n, one by one. -> relative error of all steps, how many tokens the last
        one sees"""
        got, wanted = [], []
        for i in range(ring.n, n):
            seen = ring.add(1)
            got.append(pool.step(*(rows.plain(side)[None, i : i + 1] for side in "kv"), rows.q[None, i : i + 1])[0, 0])
            wanted.append(reference.step(i, seen))
        return relative_error(got, wanted), len(seen)

    def cache(self, bits, max_size=0, raw="f16", steps=100):
        prompt = max_size or 200
        n = prompt + (70 if self.short else steps)
        rows = Rows(self.mx, n, raw)
        reference = Reference(self.mlx.attention, rows, bits)
        ring = self.ring(max_size)
        with self.pools.Pool([self.layer(bits, max_size)], raw) as pool:
            self.prefill(pool, rows, ring, prompt)
            error, seen = self.decode(pool, rows, reference, ring, n)
            held = pool.length()
        return {"ok": error < BOUNDS[min(bits)] and seen == (max_size or n) and held == n, "error": error,
                "bound": BOUNDS[min(bits)], "steps": n - prompt, "seen": seen}

    # ------------------------------------------------------------ quantizing a cache in use

    def policy(self, bits):
        policy = self.lib.policy(":".join(CODECS[b] for b in bits))
        policy.windowed, policy.sinks = policy.pair, 0
        return policy

    def wrapped(self, bits, again):
        """Raw, past its end, then quantized (`again`: twice), then further steps."""
        before, n = MAX_SIZE + 100, MAX_SIZE + 200
        rows = Rows(self.mx, n)
        reference, ring = Reference(self.mlx.attention, rows, bits), self.ring(MAX_SIZE)
        layer, raw = self.layer(bits, MAX_SIZE, codecs=False), self.policy((16, 16))
        with self.pools.Pool([layer], policy=raw) as pool:
            plain = Reference(self.mlx.attention, rows, (16, 16))
            self.prefill(pool, rows, ring, MAX_SIZE)
            self.decode(pool, rows, plain, ring, before)
            converted = [pool.requantize(self.policy(bits))]
            same = True
            if again:
                files = [self.saved(pool, "before")]
                converted.append(pool.requantize(self.policy(bits)))
                same = files[0] == self.saved(pool, "after") and converted[1] == converted[0]
            length = pool.length()
            error, seen = self.decode(pool, rows, reference, ring, n)
        return {"ok": error < BOUNDS[min(bits)] and seen == MAX_SIZE and length == before and converted[0] > 0 and same,
                "error": error, "bound": BOUNDS[min(bits)], "steps": n - before, "seen": seen, "offset": length,
                "pages": converted[0]}

    def saved(self, pool, name):
        path = self.scratch / name
        pool.save(path)
        return path.read_bytes()

    # ------------------------------------------------------------ files

    def meta_state(self, k_bits, v_bits, fields):
        """A prompt cache with this meta_state into Quire's file and back: the fields, and the
        codes of full pages."""
        n = 150
        rows = Rows(self.mx, n)
        numbers = [n, GROUP, k_bits] + ([GROUP, v_bits] if fields == 5 else [])
        k, v = (x.transpose(1, 0, 2)[None] for x in (rows.k, rows.v))
        cache = self.mlx.MetaState("QuantizedKVCache", k, v, numbers, (GROUP, k_bits), (GROUP, v_bits))
        theirs, ours, back = (self.scratch / name for name in ("a.safetensors", "b.quire", "c.safetensors"))
        self.mlx.save_meta_state(theirs, [cache])
        programs.run_text(self.program, "convert", theirs, ours)
        programs.run_text(self.program, "convert", ours, back, "--layout", "meta_state")
        before, _ = self.mx.load(str(theirs), return_metadata=True)
        after, notes = self.mx.load(str(back), return_metadata=True)
        found = [notes[key] for key in sorted(notes) if key.startswith("0.0.")]
        full = n // PAGE * PAGE
        same = all(self.mx.array_equal(x[:, :, :full], after[name][:, :, :full]).item() for name, x in before.items())
        return {"ok": same and found == [str(x) for x in numbers], "fields": found, "same_codes": full if same else 0}

    # ------------------------------------------------------------ K with heavy tails

    def heavy_tails(self):
        """Relative error of attention by the codec of K, V being f32, against fp64 over the rows
        as they came."""
        kinds = {name: scaled(k) for name, k in k_rows(256 if self.short else 2048).items()}
        errors = {codec: {} for codec in K_CODECS}
        for name, k in kinds.items():
            v, q = self.other_rows(len(k))
            wanted = self.last_rows(q, k, v)
            for codec in K_CODECS:
                errors[codec][name] = relative_error(self.attend_last(codec, q, k, v), wanted)
        return {"kurtosis": {name: kurtosis(k) for name, k in kinds.items()}, "errors": errors}

    @staticmethod
    def other_rows(n, n_queries=16):
        random = np.random.default_rng(3)
        shapes = (n, KV, DIM), (n_queries, HEADS, DIM)
        return (random.standard_normal(shape).astype(np.float32) for shape in shapes)

    def last_rows(self, q, k, v):
        """fp64 attention of the last tokens."""
        first = len(k) - len(q)
        return [self.mlx.attention(row, *(x[: first + i + 1].transpose(1, 0, 2) for x in (k, v))) for i, row in enumerate(q)]

    def attend_last(self, codec, q, k, v):
        first = len(k) - len(q)
        layer, order = self.pools.layer_of(HEADS, KV, DIM, k=codec, v="f32"), self.channel_order(k)
        layer.k_order = order.ctypes.data
        with self.pools.Pool([layer], "f32", max_batch=len(k)) as pool:
            pool.create().step(k[None, :first], v[None, :first])
            return pool.step(k[None, first:], v[None, first:], q[None])[0]

    def channel_order(self, k):
        """For km4: by the range of each channel."""
        order = np.zeros((KV, DIM), np.uint16)
        for head in range(KV):
            spread = np.ascontiguousarray(np.ptp(k[:PAGE, head], axis=0))
            self.lib.check(self.lib.lib.quire_channel_order(spread.ctypes.data, DIM, order[head].ctypes.data))
        return order


K_CODECS = ("kc8", "a8", "q8_0", "vt8", "km4", "kc4", "a4", "q4_0", "tq4", "tqp4")


def k_rows(n):
    """Synthetic K, from mild to heavy: each adds to the one before what models are known to
    have."""
    random = np.random.default_rng(2)
    normal = random.standard_normal((n, KV, DIM))
    outliers = np.where(np.arange(DIM) % 32 == 5, 20.0, 1.0)  # 4 channels of 128
    tails = random.standard_t(3, (n, KV, DIM))
    return {"normal": normal, "outlier channels": normal * outliers, "heavy tails": tails,
            "both": tails * outliers}


def scaled(k):
    """So that logits have the same deviation, 2, in all: attention is then equally sharp."""
    return (2 * k / np.sqrt((k**2).sum(axis=-1).mean() / DIM)).astype(np.float32)


def kurtosis(k):
    """Of all elements together: 3 for a normal distribution."""
    x = k.astype(np.float64).ravel() - k.mean()
    return float((x**4).mean() / (x**2).mean() ** 2)


def all_cases(cases):
    """{name: function}, in the order of the request's test plan."""
    table = {"bf16": lambda: cases.cache((16, 16), raw="bf16")}
    widths = {"4": (4, 4), "8": (8, 8), "8,4": (8, 4), "4,2": (4, 2)}
    for name, bits in widths.items():
        table[f"bits {name}"] = lambda bits=bits: cases.cache(bits)
    table["max size 128"] = lambda: cases.cache((16, 16), MAX_SIZE)
    for name, bits in widths.items():
        table[f"max size 128, bits {name}"] = lambda bits=bits: cases.cache(bits, MAX_SIZE)
    table["meta_state of 3 fields"] = lambda: cases.meta_state(8, 8, 3)
    table["meta_state of 5 fields"] = lambda: cases.meta_state(8, 4, 5)
    for name, bits in widths.items():
        table[f"quantized after the wrap, bits {name}"] = lambda bits=bits: cases.wrapped(bits, again=False)
    table["quantized twice"] = lambda: cases.wrapped((8, 4), again=True)
    table["heavy tails"] = cases.heavy_tails
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--build", type=pathlib.Path, default=programs.ROOT / "build")
    parser.add_argument("--short", action="store_true", help="fewer steps and tokens")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        table = all_cases(Cases(options.build, options.short, pathlib.Path(scratch)))
        unknown = set(options.cases) - set(table)
        if unknown:
            parser.error(f"no case is called {', '.join(sorted(unknown))}: there are {'; '.join(table)}")
        print(json.dumps({name: case() for name, case in table.items() if not options.cases or name in options.cases}, indent=2))


if __name__ == "__main__":
    main()
