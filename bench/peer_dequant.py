"""Attention over TurboQuant's codes by dequantizing them first: the way that Quire's fused kernels
replace.

usage: peer_dequant.py [--build DIR] [--shape 32x8x128] [--rows 128,1] [--ctx 2048,..] [-t N] [--seconds X] [--check]
Prints JSON, an entry per context and number of queries: for each way that is here milliseconds of
dequantizing and of SDPA, and the memory it takes beside the packed cache. --check: also the cosine
between Quire's output and the dequantized path, and the memory of Quire's step. Needs the Python of
tools/setup bench.

Pages are Quire's own `tq4`. Dequantized rows stay rotated: q is rotated and the output rotated
back, which is the cheapest way. A loop in C (peer_dequant.c), numpy and Quire's quire_page_decode
dequantize, with all threads; torch and mlx attend, without a mask.
"""

import argparse
import copy
import ctypes as C
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import programs

PAGE, BITS = 64, 4
LONG_SECONDS, SLOW_SECONDS = 3, 10  # a longer run needs no second one; a way that would take longer is left out


# ---------------------------------------------------------------- packed rows


class Packed:
    """K and V in tq4, as arrays by KV head, and the rows they came from. Only full pages are
    packed."""

    def __init__(self, lib, book, rotation, kv_heads, dim, n_rows):
        random = np.random.default_rng(1)
        self.kv_heads, self.dim, self.n = kv_heads, dim, n_rows // PAGE * PAGE
        self.rotation = rotation.forward(np.eye(dim, dtype=np.float32))  # of rows: x @ rotation
        # As f16 holds them, like the rows of a pool. Tokens come first, as in a batch.
        self.rows = [random.standard_normal((n_rows, kv_heads, dim), np.float32).astype(np.float16).astype(np.float32)
                     for _ in "kv"]
        self.levels = np.stack([np.tile(book, 16), np.repeat(book, 16)], axis=1).astype(np.float32)  # of every byte
        self.page, self.pages = lib.Page("tq4", "tq4", dim, dim), [[] for _ in range(kv_heads)]
        self.codes = [np.empty((kv_heads, self.n, dim // 2), np.uint8) for _ in "kv"]
        self.norms = [np.empty((kv_heads, self.n, 1), np.float32) for _ in "kv"]
        self.means = np.empty((kv_heads, self.n // PAGE, dim), np.float32)
        for head in range(kv_heads):
            for first in range(0, self.n, PAGE):
                self.pack(head, slice(first, first + PAGE))
        self.means = self.means @ self.rotation

    def pack(self, head, where):
        record = self.page.encode(*(x[where, head] for x in self.rows))
        self.pages[head].append(record)
        for i, side in enumerate("kv"):
            arrays = self.page.export_arrays(side, record)
            self.codes[i][head, where] = arrays["codes"].view(np.uint8)
            self.norms[i][head, where, 0] = arrays["norms"]
            if side == "k":
                self.means[head, where.start // PAGE] = arrays["means"]

    def first(self, n):
        """The same, cut to its first tokens."""
        part = copy.copy(self)
        part.n, part.pages, part.means = n, [pages[: n // PAGE] for pages in self.pages], self.means[:, : n // PAGE]
        part.codes, part.norms = ([x[:, :n] for x in arrays] for arrays in (self.codes, self.norms))
        return part

    def bytes(self):
        return self.kv_heads * self.n // PAGE * self.page.n_bytes


# ---------------------------------------------------------------- dequantizing: (heads, tokens, dim) of K and of V


class Loop:
    """C, a thread per part of the rows."""

    name, threaded = "C loop", True

    def __init__(self, scratch, threads):
        source, library = pathlib.Path(__file__).with_suffix(".c"), scratch / "dequant.so"
        subprocess.run([os.environ.get("CC", "cc"), "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", str(library)],
                       check=True, capture_output=True)
        self.lib, self.pool, self.threads = C.CDLL(str(library)), ThreadPoolExecutor(threads), threads

    def side(self, packed, i, bf16):
        out = np.empty((packed.kv_heads, packed.n, packed.dim), np.uint16 if bf16 else np.float32)
        function = self.lib.dequantize_bf16 if bf16 else self.lib.dequantize_f32
        pages = packed.n // PAGE
        cuts = [part * pages // self.threads * PAGE for part in range(self.threads + 1)]

        def part(head, a, b):
            mean = packed.means[head, a // PAGE].ctypes.data if i == 0 else None
            function(*(C.c_void_p(x) for x in (packed.codes[i][head, a:].ctypes.data, packed.norms[i][head, a:].ctypes.data,
                                               mean, packed.levels.ctypes.data)),
                     C.c_size_t(b - a), C.c_size_t(packed.dim), C.c_void_p(out[head, a:].ctypes.data))

        jobs = [(head, a, b) for head in range(packed.kv_heads) for a, b in zip(cuts, cuts[1:]) if b > a]
        list(self.pool.map(lambda job: part(*job), jobs))
        return out

    def __call__(self, packed, bf16=False):
        return [self.side(packed, i, bf16) for i in range(2)]


class Numpy:
    """A table of pairs of levels, taken by bytes; heads in threads."""

    name = "numpy"

    def __init__(self, threads):
        self.pool = ThreadPoolExecutor(threads)

    def __call__(self, packed, bf16=False):
        pairs = packed.levels.view(np.float64).ravel()
        outs = [np.empty((packed.kv_heads, packed.n, packed.dim), np.float32) for _ in "kv"]

        def head(job):
            i, h = job
            out = outs[i][h]
            np.take(pairs, packed.codes[i][h], out=out.view(np.float64), mode="clip")
            out *= packed.norms[i][h]
            if i == 0:
                out.reshape(-1, PAGE, packed.dim)[:] += packed.means[h][:, None]

        list(self.pool.map(head, [(i, h) for i in range(2) for h in range(packed.kv_heads)]))
        return outs


class Library:
    """quire_page_decode, page by page: rows in their own space, not rotated."""

    name = "quire_page_decode"

    def __init__(self, lib, threads):
        self.lib, self.threads = lib, threads

    def __call__(self, packed, bf16=False):
        outs = [np.empty((packed.kv_heads * packed.n, packed.dim), np.float32) for _ in "kv"]
        decode, shape = self.lib.lib.quire_page_decode, C.byref(packed.page.shape)
        pages = [page for of_head in packed.pages for page in of_head]

        def part(first, last):
            for i in range(first, last):
                k, v = (out[i * PAGE :].ctypes.data for out in outs)
                self.lib.check(decode(shape, pages[i].ctypes.data, k, v))

        cuts = [part * len(pages) // self.threads for part in range(self.threads + 1)]
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(part, cuts, cuts[1:]))
        return [out.reshape(packed.kv_heads, packed.n, packed.dim) for out in outs]


# ---------------------------------------------------------------- SDPA
# q (KV heads, rows of the group, dim) -> the same; K and V are rotated, so q is and the output is
# rotated back.


class Torch:
    def __init__(self, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch, self.version = torch, torch.__version__

    def __call__(self, q, k, v, rotation, bf16):
        torch = self.torch
        q, k, v, rotation = (torch.from_numpy(x) for x in (q, k, v, rotation))
        with torch.inference_mode():
            q = q @ rotation
            if bf16:
                q, k, v = q.bfloat16(), k.view(torch.bfloat16), v.view(torch.bfloat16)
            out = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
            return (out.float() @ rotation.T).numpy()


class Mlx:
    def __init__(self):
        import importlib.metadata

        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        self.mx, self.version = mx, importlib.metadata.version("mlx")

    def __call__(self, q, k, v, rotation, bf16):
        q, k, v, rotation = (self.mx.array(x) for x in (q, k, v, rotation))
        out = self.mx.fast.scaled_dot_product_attention((q @ rotation)[None], k[None], v[None], scale=1 / math.sqrt(q.shape[-1]))
        return np.array(out[0] @ rotation.T)


def ways(lib, scratch, threads):
    """[(name, dequantize, sdpa, bf16)], and {library: why it is missing}."""
    found, missing, loop = [], {}, None
    try:
        loop = Loop(scratch, threads)
    except (OSError, subprocess.CalledProcessError) as error:
        missing["C loop"] = str(error)
    try:
        torch = Torch(threads)
        if loop:
            found += [(f"{loop.name}, torch {kind}", loop, torch, kind == "bf16") for kind in ("f32", "bf16")]
        found += [(f"{d.name}, torch f32", d, torch, False) for d in (Numpy(threads), Library(lib, threads))]
    except ImportError as error:
        missing["torch"] = f"{error} (PEERS=all tools/setup bench installs it)"
    try:
        found.append(("numpy, mlx f32", Numpy(threads), Mlx(), False))
    except ImportError as error:
        missing["mlx"] = str(error)
    return found, missing


# ---------------------------------------------------------------- measuring


def resident(field):
    """VmRSS or VmHWM in bytes; None where the system has no /proc."""
    try:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def extra_memory(call):
    """The most that the process grows by during the call, in bytes; None where that cannot be
    told."""
    try:
        C.CDLL(None).malloc_trim(0)  # what earlier calls freed is no longer resident
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    except (AttributeError, OSError):
        call()
        return None
    before = resident("VmRSS")
    call()
    return max(0, resident("VmHWM") - before)


def measure_way(way, packed, q, seconds):
    """-> best milliseconds of dequantizing, of SDPA and of both, and the memory of the first
    run; the output"""
    name, dequantize, sdpa, bf16 = way
    rotation = np.eye(packed.dim, dtype=np.float32) if isinstance(dequantize, Library) else packed.rotation
    best, outs = {"dequantize_ms": math.inf, "sdpa_ms": math.inf, "ms": math.inf}, []

    def once():
        start = time.perf_counter()
        k, v = dequantize(packed, bf16)
        middle = time.perf_counter()
        out = sdpa(q, k, v, rotation, bf16)
        end = time.perf_counter()
        times = {"dequantize_ms": middle - start, "sdpa_ms": end - middle, "ms": end - start}
        for key, value in times.items():
            best[key] = min(best[key], 1e3 * value)
        outs[:] = [out]

    first = time.perf_counter()
    memory = extra_memory(once)
    if time.perf_counter() - first < LONG_SECONDS:  # else once is enough
        once()
    while time.perf_counter() - first < seconds:
        once()
    return {"way": name, **best, "extra_bytes": memory}, outs[0]


# ---------------------------------------------------------------- Quire on the same rows


def dequantized_attention(packed, values, q, first, i):
    """Rows of one page as Quire defines them: pages before it dequantized, their own raw up to
    themselves."""
    n = min(PAGE, len(q) - (i - first))
    rows = q[i - first : i - first + n]
    group = rows.shape[1] // packed.kv_heads
    hidden = np.triu(np.full((n, n), -np.inf, np.float32), 1)
    out = np.empty(rows.shape, np.float32)
    for head in range(packed.kv_heads):
        k, v = (np.concatenate([value[head, :i], raw[i : i + n, head]]) for value, raw in zip(values, packed.rows))
        for h in range(head * group, (head + 1) * group):
            logits = rows[:, h] @ k.T / np.float32(math.sqrt(packed.dim))
            logits[:, i:] += hidden
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            out[:, h] = weights @ v / weights.sum(axis=1, keepdims=True)
    return out


def cosine(a, b):
    a, b = (x.astype(np.float64).ravel() for x in (a, b))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def fused(pools, packed, q, first):
    """Quire's output for the last tokens, and the memory that this step took beside the cache."""
    heads, rows = q.shape[1], len(q)
    layer = pools.layer_of(heads, packed.kv_heads, packed.dim, k="tq4", v="tq4")
    budget = 4 * packed.bytes() + (256 << 20)
    with pools.Pool([layer], budget=budget, max_batch=max(rows, 512)) as pool:
        pool.create()
        for at in range(0, first, 512):
            pool.step(*(x[None, at : min(at + 512, first)] for x in packed.rows))
        last, outs = slice(first, first + rows), []
        memory = extra_memory(lambda: outs.append(pool.step(*(x[None, last] for x in packed.rows), q[None])[0]))
    return outs[0], memory


def compare_fused(lib, pools, packed, q, first):
    out, memory = fused(pools, packed, q, first)
    values = Library(lib, 1)(packed)
    wanted = np.concatenate([dequantized_attention(packed, values, q, first, i) for i in range(first, first + len(q), PAGE)])
    return {"cosine": cosine(out, wanted), "fused_extra_bytes": memory}


def measure_ways(found, packed, q, seconds, slow):
    """`slow`: milliseconds per token of each way so far."""
    folded = np.ascontiguousarray(q.transpose(1, 0, 2).reshape(packed.kv_heads, -1, packed.dim))
    results, outs = [], []
    for way in found:
        key = way[0], len(q)
        if slow.get(key, 0) * packed.n > 1e3 * SLOW_SECONDS:
            continue
        result, out = measure_way(way, packed, folded, seconds)
        outs.append(out)
        slow[key] = result["ms"] / packed.n
        results.append({**result, "cosine": cosine(out, outs[0])})
    if any(result["cosine"] < 0.9999 for result in results):
        programs.fail(f"the ways do not agree: {results}")
    return results


def measure(options, modules, found, ctx, slow):
    """An entry for each number of queries."""
    lib, pools, page = modules
    heads, kv_heads, dim = map(int, options.shape.split("x"))
    book = page.UNIT[BITS] * page.LEVELS[BITS] / np.float32(math.sqrt(dim))
    packed = Packed(lib, book, page.Rotation(dim), kv_heads, dim, ctx + (max(options.rows) if options.check else 0))
    for rows in options.rows:
        q = np.random.default_rng(2).standard_normal((rows, heads, dim), np.float32)
        entry = {"ctx": ctx, "rows": rows, "packed_bytes": packed.first(ctx).bytes()}
        entry["ways"] = measure_ways(found, packed.first(ctx), q, options.seconds, slow)
        yield entry | (compare_fused(lib, pools, packed, q, ctx) if options.check else {})


def numbers(text):
    return [int(x) for x in text.split(",")]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=programs.ROOT / "build")
    parser.add_argument("--shape", default="32x8x128")
    parser.add_argument("--rows", type=numbers, default=[128, 1], metavar="N,..", help="queries (default: 128,1)")
    parser.add_argument("--ctx", type=numbers, default=[2048, 8192, 32768, 65536], metavar="N,..", help="multiples of 64")
    parser.add_argument("-t", "--threads", type=int, default=programs.processors())
    parser.add_argument("--seconds", type=float, default=0.7, help="for each way and context (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="also compare with Quire's attention")
    options = parser.parse_args()
    if any(ctx % PAGE for ctx in options.ctx):
        parser.error(f"--ctx: not all of {options.ctx} are multiples of {PAGE}")
    return options


def main():
    options = parse_options()
    programs.use_binding(options.build)
    import quire_lib
    import quire_page
    import quire_pool

    with tempfile.TemporaryDirectory() as scratch:
        found, missing = ways(quire_lib, pathlib.Path(scratch), options.threads)
        slow, modules = {}, (quire_lib, quire_pool, quire_page)
        entries = [entry for ctx in options.ctx for entry in measure(options, modules, found, ctx, slow)]
    json.dump({"missing": missing, "results": entries}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
