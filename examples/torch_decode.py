#!/usr/bin/env python3
"""A Llama-shaped decode loop in PyTorch, once over a bf16 cache with
scaled_dot_product_attention, once over Quire's packed pages: memory, tokens per second, and how far
the results are apart.

    QUIRE_CUDA_LIBRARY=build/lib/libquire_cuda.so python3 examples/torch_decode.py

Weights and the first tokens are random: this shows how the calls fit together and what they cost,
not text. Needs a Hopper GPU and PyTorch; says so and returns 77 where one is missing.
"""
import argparse
import ctypes
import os
import sys
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int32, c_size_t, c_uint32, c_void_p

PAGE, BF16 = 64, 2  # numbers of quire.h


# ---- the structures of quire.h and quire_cuda.h


class Layer(Structure):
    _fields_ = [
        ("n_heads", c_int32), ("n_kv_heads", c_int32), ("k_dim", c_int32), ("v_dim", c_int32),
        ("window", c_int32), ("keep", c_int32), ("scale", c_float), ("softcap", c_float),
        ("alibi", c_void_p), ("sink_logits", c_void_p), ("k", c_int), ("v", c_int),
        ("share", c_int32), ("k_order", c_void_p), ("k_feedback", c_void_p), ("k_rope", c_void_p),
    ]  # fmt: skip


class PoolOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("layers", POINTER(Layer)), ("n_layers", c_int32),
        ("k", c_int), ("v", c_int), ("raw", c_int), ("out", c_int), ("sinks", c_int32),
        ("max_seqs", c_int32), ("max_tokens", c_int32), ("n_pages", c_int32),
        ("max_batch_tokens", c_int32), ("exact", c_int32),
    ]  # fmt: skip


class PoolInfo(Structure):
    _fields_ = [
        ("device_bytes", c_size_t), ("page_bytes", c_size_t), ("n_pages", c_int32),
        ("free_pages", c_int32), ("n_seqs", c_int32), ("n_bad", c_uint32),
    ]  # fmt: skip


class StepItem(Structure):
    _fields_ = [("seq", c_void_p), ("n_tokens", c_int32)]


def load_library():
    library = ctypes.CDLL(os.environ.get("QUIRE_CUDA_LIBRARY", "libquire_cuda.so"))
    library.quire_cuda_last_error.restype = ctypes.c_char_p
    pool, stream, rows = c_void_p, c_void_p, c_void_p
    library.quire_cuda_pool_create.argtypes = [POINTER(pool), POINTER(PoolOptions)]
    library.quire_cuda_pool_get_info.argtypes = [pool, POINTER(PoolInfo), stream]
    library.quire_cuda_seq_create.argtypes = [pool, POINTER(c_void_p)]
    library.quire_cuda_step_begin.argtypes = [pool, POINTER(StepItem), c_int32, stream]
    library.quire_cuda_step_append.argtypes = [pool, c_int32, rows, rows, stream]
    library.quire_cuda_step_attend.argtypes = [pool, c_int32, rows, rows, rows, stream]
    library.quire_cuda_step_end.argtypes = [pool, c_void_p, stream]
    return library


class PackedCache:
    """The cache of all layers, in a pool of the library: km4:vt4."""

    def __init__(self, torch, library, n_layers, shape, batch, longest):
        self.torch, self.library, self.n_layers, self.batch = torch, library, n_layers, batch
        heads, kv_heads, dim = shape
        # The order of channels that km4 packs K in: here as they are.
        order = (ctypes.c_uint16 * (kv_heads * dim))(*(i % dim for i in range(kv_heads * dim)))
        layers = (Layer * n_layers)()
        for layer in layers:
            layer.n_heads, layer.n_kv_heads = heads, kv_heads
            layer.k_dim = layer.v_dim = dim
            layer.share = -1
            layer.k_order = ctypes.addressof(order)
        options = PoolOptions()
        library.quire_cuda_pool_options_default(byref(options))
        options.layers, options.n_layers = layers, n_layers
        options.raw = options.out = BF16
        options.max_seqs, options.max_tokens = batch, longest
        self.pool = c_void_p()
        self.check(library.quire_cuda_pool_create(byref(self.pool), byref(options)))
        self.items = (StepItem * batch)()
        for item in self.items:
            seq = c_void_p()
            self.check(library.quire_cuda_seq_create(self.pool, byref(seq)))
            item.seq, item.n_tokens = seq, 1

    def check(self, status):
        if status:
            raise RuntimeError(self.library.quire_cuda_last_error().decode())

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def info(self):
        info = PoolInfo()
        self.check(self.library.quire_cuda_pool_get_info(self.pool, byref(info), self.stream()))
        return info

    def bytes(self):
        return self.info().device_bytes

    def begin(self, items=None):
        items = items or self.items
        stream = self.stream()
        self.check(self.library.quire_cuda_step_begin(self.pool, items, len(items), stream))

    def append(self, layer, k, v):
        k, v = k.contiguous(), v.contiguous()
        rows = k.data_ptr(), v.data_ptr()
        self.check(self.library.quire_cuda_step_append(self.pool, layer, *rows, self.stream()))

    def end(self):
        self.check(self.library.quire_cuda_step_end(self.pool, None, self.stream()))

    def prefill(self, k, v, chunk=2048):
        """The first tokens of every layer; k, v: (batch, tokens, KV heads, dim)."""
        for i, item in enumerate(self.items):
            for at in range(0, k.shape[1], chunk):
                rows = k[i, at : at + chunk], v[i, at : at + chunk]
                self.begin((StepItem * 1)(StepItem(item.seq, len(rows[0]))))
                for layer in range(self.n_layers):
                    self.append(layer, *rows)
                self.end()

    def attend(self, layer, q, k, v):
        """q: (batch, heads, dim); k, v: (batch, KV heads, dim) of the step's tokens."""
        self.append(layer, k, v)
        out = self.torch.empty_like(q)
        rows = q.data_ptr(), out.data_ptr(), None
        self.check(self.library.quire_cuda_step_attend(self.pool, layer, *rows, self.stream()))
        return out


class PlainCache:
    """The same over a bf16 cache."""

    def __init__(self, torch, n_layers, shape, batch, longest):
        self.torch, self.token = torch, 0
        size = (n_layers, batch, shape[1], longest, shape[2])
        self.k, self.v = (torch.zeros(size, dtype=torch.bfloat16, device="cuda") for _ in range(2))

    def bytes(self):
        return 2 * self.k.numel() * 2

    def prefill(self, k, v):
        self.token = k.shape[1]
        self.k[..., : self.token, :] = k.transpose(1, 2)
        self.v[..., : self.token, :] = v.transpose(1, 2)

    def begin(self):
        pass

    def attend(self, layer, q, k, v):
        cache_k, cache_v, token = self.k[layer], self.v[layer], self.token
        cache_k[:, :, token], cache_v[:, :, token] = k, v
        nn, k, v = self.torch.nn, cache_k[:, :, : token + 1], cache_v[:, :, : token + 1]
        with nn.attention.sdpa_kernel([nn.attention.SDPBackend.FLASH_ATTENTION]):
            out = nn.functional.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)
        return out[:, :, 0]

    def end(self):
        self.token += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=16384, help="tokens before; whole pages")
    parser.add_argument("--steps", type=int, default=128)
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    try:
        import torch
        import torch.nn.attention
    except ImportError:
        print("left out: PyTorch is missing")
        return 77
    library = load_library()
    if not torch.cuda.is_available() or library.quire_cuda_available():
        print("left out:", library.quire_cuda_last_error().decode() or "no GPU")
        return 77
    shape = heads, kv_heads, dim = 32, 8, 128
    batch, start, hidden = options.batch, options.context // PAGE * PAGE, heads * dim
    longest = start + options.steps
    warm_up = min(8, options.steps // 2)  # steps that are not timed
    random = torch.Generator("cuda").manual_seed(1)
    normal = lambda *size: torch.randn(size, generator=random, device="cuda", dtype=torch.bfloat16)
    weights = lambda n: [normal(hidden, n) / hidden**0.5 for _ in range(options.layers)]
    qkv, back = weights(hidden + 2 * kv_heads * dim), weights(hidden)
    first = [normal(batch, start, kv_heads, dim) for _ in range(2)]

    def run(cache):
        cache.prefill(*first)
        x = torch.ones(batch, hidden, dtype=torch.bfloat16, device="cuda")
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for token in range(start, longest):
            if token == start + warm_up:
                begin.record()
            cache.begin()
            for layer, (w_qkv, w_back) in enumerate(zip(qkv, back)):
                y = torch.nn.functional.rms_norm(x, (hidden,)) @ w_qkv
                q, k, v = y.split((hidden, kv_heads * dim, kv_heads * dim), dim=1)
                q = q.reshape(batch, heads, dim).contiguous()
                k, v = (z.reshape(batch, kv_heads, dim) for z in (k, v))
                x = x + cache.attend(layer, q, k, v).reshape(batch, hidden) @ w_back
            cache.end()
        end.record()
        torch.cuda.synchronize()
        seconds = begin.elapsed_time(end) / 1e3
        return x, batch * (options.steps - warm_up) / seconds, cache.bytes()

    tokens = f"{start} + {options.steps} tokens"
    print(f"{options.layers} layers of 32x8x128, {batch} sequences, {tokens}")
    plain, plain_rate, plain_bytes = run(PlainCache(torch, options.layers, shape, batch, longest))
    torch.cuda.empty_cache()
    cache = PackedCache(torch, library, options.layers, shape, batch, longest)
    packed, packed_rate, packed_bytes = run(cache)
    print(f"torch, bf16 cache: {plain_bytes / 1e9:6.2f} GB, {plain_rate:8.0f} tokens/s")
    print(f"Quire, km4:vt4:    {packed_bytes / 1e9:6.2f} GB, {packed_rate:8.0f} tokens/s")
    error = ((packed - plain).float().norm() / plain.float().norm()).item()
    smaller, faster = plain_bytes / packed_bytes, packed_rate / plain_rate
    print(f"{smaller:.2f} times less memory, {faster:.2f} times the speed;", end=" ")
    print(f"results differ by {error:.3f} of their size")
    return 0 if error < 0.5 and cache.info().n_bad == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
