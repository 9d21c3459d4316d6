"""Times scaled dot-product attention of mlx or torch on the CPU, best of several runs.

usage: peer_sdpa.py mlx|torch THREADS WORK...      WORK: HEADSxKV_HEADSxSIZE,CONTEXT,ROWS,TYPE,LAYERS
Prints a line per work: milliseconds per layer. The first line is the library's version. A run goes through LAYERS layers,
each with K and V of its own.
TYPE: f32, f16 or bf16; mlx also q8, q4 and q8:q4 (K and V), its quantized matrix products with groups of 64, as mlx-lm's
cache uses them.

Query heads that share a KV head are tried in two ways, as the library has them and as rows of one head, and the faster one
counts: without a mask both are the same attention.
"""

import math
import sys
import time
from functools import partial


def best_ms(calls):
    """Of one call; all of them, one per layer, are made in turn."""
    best, first = math.inf, time.perf_counter()
    while True:
        start = time.perf_counter()
        for call in calls:
            call()
        now = time.perf_counter()
        best = min(best, now - start)
        if now - first > 0.7:
            return 1e3 * best / len(calls)


def with_torch(threads):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def measure(heads, kv_heads, size, context, rows, kind, layers):
        q = torch.randn(1, heads, rows, size, dtype=types[kind])
        caches = [[torch.randn(1, kv_heads, context, size, dtype=types[kind]) for _ in range(2)] for _ in range(layers)]
        folded = q.reshape(1, kv_heads, heads // kv_heads * rows, size)
        with torch.inference_mode():
            return min(best_ms([partial(sdpa, folded, k, v) for k, v in caches]),
                       best_ms([partial(sdpa, q, k, v, enable_gqa=True) for k, v in caches]))

    return torch.__version__, measure


def with_mlx(threads):
    import importlib.metadata

    import mlx.core as mx

    mx.set_default_device(mx.cpu)  # which takes as many threads as it likes
    mx.random.seed(1)
    types = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}

    def plain(q, k, v, scale):
        return lambda: mx.eval(mx.fast.scaled_dot_product_attention(q, k, v, scale=scale))

    def quantized(q, k, v, scale, k_bits, v_bits):
        q = (q * scale)[:, :, None] if q.ndim == 4 else q
        k, v = (tuple(part[:, :, None] for part in mx.quantize(x, group_size=64, bits=bits))
                for x, bits in ((k, k_bits), (v, v_bits)))
        mx.eval(q, *k, *v)

        def call():
            scores = mx.quantized_matmul(q, *k, transpose=True, group_size=64, bits=k_bits)
            mx.eval(mx.quantized_matmul(mx.softmax(scores, axis=-1), *v, transpose=False, group_size=64, bits=v_bits))

        return call

    def new_cache(kv_heads, context, size, dtype):
        k, v = (mx.random.normal((1, kv_heads, context, size)).astype(dtype) for _ in range(2))
        mx.eval(k, v)
        return k, v

    def measure(heads, kv_heads, size, context, rows, kind, layers):
        dtype = types.get(kind, mx.float32)
        q = mx.random.normal((1, heads, rows, size)).astype(dtype)
        folded = q.reshape(1, kv_heads, heads // kv_heads * rows, size)
        mx.eval(q, folded)
        scale = 1 / math.sqrt(size)
        caches = (new_cache(kv_heads, context, size, dtype) for _ in range(layers))
        if kind in types:
            caches = list(caches)
            return min(best_ms([plain(x, k, v, scale) for k, v in caches]) for x in (folded, q))
        bits = [int(part[1:]) for part in kind.split(":")]
        return best_ms([quantized(folded, k, v, scale, bits[0], bits[-1]) for k, v in caches])

    return importlib.metadata.version("mlx"), measure


def main():
    library, threads, works = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    version, measure = {"mlx": with_mlx, "torch": with_torch}[library](threads)
    print(version, flush=True)
    for work in works:
        shape, context, rows, kind, layers = work.split(",")
        print(f"{measure(*map(int, shape.split('x')), int(context), int(rows), kind, int(layers)):.4f}", flush=True)


if __name__ == "__main__":
    main()
