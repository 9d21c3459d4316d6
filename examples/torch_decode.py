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
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p

PAGE, SINKS = 64, 4
KM4, VT4, BF16 = 20, 25, 2  # numbers of quire.h


# ---- the structures of quire_cuda.h


class Pair(ctypes.Structure):
    _fields_ = [("k", c_int), ("v", c_int)]


class PageShape(ctypes.Structure):
    _fields_ = [("pair", Pair), ("k_dim", c_int32), ("v_dim", c_int32), ("raw", c_int)]


class Records(ctypes.Structure):
    _fields_ = [("base", c_void_p), ("page_stride", c_size_t), ("head_stride", c_size_t)]


class Rows(ctypes.Structure):
    _fields_ = [("k", c_void_p), ("v", c_void_p)] + [
        (name, c_int64)
        for name in ("k_slot", "k_head", "k_token", "v_slot", "v_head", "v_token")
    ]


class SealArgs(ctypes.Structure):
    _fields_ = [
        ("shape", PageShape), ("n_kv_heads", c_int32), ("n_pages", c_int32), ("rows", Rows),
        ("slots", c_void_p), ("records", Records), ("ids", c_void_p), ("skip", c_void_p),
        ("k_order", c_void_p), ("n_bad", c_void_p),
    ]  # fmt: skip


class DecodeOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("n_heads", c_int32), ("n_kv_heads", c_int32),
        ("k_dim", c_int32), ("v_dim", c_int32), ("pair", Pair), ("raw", c_int), ("out", c_int),
        ("scale", c_float), ("sinks", c_int32), ("max_seqs", c_int32), ("window", c_int32),
        ("keep", c_int32), ("softcap", c_float), ("exact", c_int32),
    ]  # fmt: skip


class DecodeArgs(ctypes.Structure):
    _fields_ = [
        ("n_seqs", c_int32), ("q", c_void_p), ("out", c_void_p), ("lse", c_void_p),
        ("lengths", c_void_p), ("pages", c_void_p), ("pages_stride", c_int64),
        ("records", Records), ("own", Rows), ("sink", Rows), ("slots", c_void_p),
        ("k_order", c_void_p), ("alibi", c_void_p), ("sink_logits", c_void_p),
        ("workspace", c_void_p),
    ]  # fmt: skip


def load_library():
    library = ctypes.CDLL(os.environ.get("QUIRE_CUDA_LIBRARY", "libquire_cuda.so"))
    library.quire_cuda_last_error.restype = ctypes.c_char_p
    library.quire_cuda_decode_workspace.restype = c_size_t
    library.quire_cuda_decode_workspace.argtypes = [c_void_p]
    library.quire_cuda_decode_create.argtypes = [POINTER(c_void_p), POINTER(DecodeOptions)]
    library.quire_cuda_decode.argtypes = [c_void_p, POINTER(DecodeArgs), c_void_p]
    library.quire_cuda_seal.argtypes = [POINTER(SealArgs), c_void_p]
    return library


def record_bytes(dim):
    """Of km4:vt4 (docs/FORMAT.md): codes of K and V, scales and zeros of K, scales of V."""
    return -(-(PAGE * dim + 4 * dim + 2 * PAGE) // 128) * 128


def rows_of(k, v):
    """k, v: (slots, tokens, KV heads, dim)."""
    slot, token, head = k.stride()[:3]
    return Rows(k.data_ptr(), v.data_ptr(), slot, head, token, slot, head, token)


class PackedLayer:
    """The cache of one layer: packed pages, the page that is being filled, and the sinks."""

    def __init__(self, torch, library, shape, batch, longest):
        self.torch, self.library, self.batch = torch, library, batch
        self.heads, self.kv_heads, self.dim = shape
        self.max_pages = -(-longest // PAGE)
        record = record_bytes(self.dim)
        n_pages = batch * self.max_pages
        new = lambda *size, dtype=torch.bfloat16: torch.zeros(size, dtype=dtype, device="cuda")
        self.memory = new(n_pages * self.kv_heads * record, dtype=torch.uint8)
        self.records = Records(self.memory.data_ptr(), self.kv_heads * record, record)
        self.own_k, self.own_v = (new(batch, PAGE, self.kv_heads, self.dim) for _ in range(2))
        self.sink_k, self.sink_v = (new(batch, SINKS, self.kv_heads, self.dim) for _ in range(2))
        # Page i of sequence b is record b * max_pages + i; a real pool hands out free records.
        self.pages = torch.arange(n_pages, dtype=torch.int32, device="cuda")
        self.pages = self.pages.view(batch, self.max_pages)
        order = torch.arange(self.dim, dtype=torch.int16, device="cuda")
        self.order = order.repeat(self.kv_heads).contiguous()
        self.lengths = new(batch, dtype=torch.int32)
        self.bad = new(1, dtype=torch.int32)
        options = DecodeOptions()
        library.quire_cuda_decode_options_default(byref(options))
        options.n_heads, options.n_kv_heads = self.heads, self.kv_heads
        options.k_dim = options.v_dim = self.dim
        options.raw = options.out = BF16
        options.sinks, options.max_seqs = SINKS, batch
        self.plan = c_void_p()
        self.check(library.quire_cuda_decode_create(byref(self.plan), byref(options)))
        size = library.quire_cuda_decode_workspace(self.plan)
        self.workspace = new(size, dtype=torch.uint8)

    def check(self, status):
        if status:
            raise RuntimeError(self.library.quire_cuda_last_error().decode())

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def bytes(self):
        own = (self.own_k, self.own_v, self.sink_k, self.sink_v, self.memory)
        return sum(x.numel() * x.element_size() for x in own)

    def seal(self, k, v, page):
        """k, v: (batch, pages * 64, KV heads, dim), the rows of pages from `page` on."""
        torch, n = self.torch, k.shape[1] // PAGE
        paged = lambda x: x.reshape(self.batch * n, PAGE, self.kv_heads, self.dim)
        k, v = paged(k), paged(v)
        ids = self.pages[:, page : page + n].contiguous()
        skip = torch.zeros(self.batch, n, dtype=torch.int32, device="cuda")
        skip[:, 0] = SINKS if page == 0 else 0
        args = SealArgs()
        args.shape = PageShape(Pair(KM4, VT4), self.dim, self.dim, BF16)
        args.n_kv_heads, args.n_pages = self.kv_heads, self.batch * n
        args.rows, args.records = rows_of(k, v), self.records
        args.ids, args.skip = ids.data_ptr(), skip.data_ptr()
        args.k_order, args.n_bad = self.order.data_ptr(), self.bad.data_ptr()
        self.check(self.library.quire_cuda_seal(byref(args), self.stream()))

    def prefill(self, k, v):
        """The first tokens, a multiple of 64 of them."""
        self.seal(k, v, 0)
        self.sink_k.copy_(k[:, :SINKS])
        self.sink_v.copy_(v[:, :SINKS])
        self.lengths.fill_(k.shape[1])

    def step(self, token, q, k, v):
        """q: (batch, heads, dim); k, v: (batch, KV heads, dim) of token number `token`."""
        if token % PAGE == 0 and token > 0 and self.filled:
            self.seal(self.own_k, self.own_v, token // PAGE - 1)
        self.own_k[:, token % PAGE] = k
        self.own_v[:, token % PAGE] = v
        self.filled = token % PAGE == PAGE - 1
        self.lengths += 1
        out = self.torch.empty_like(q)
        args = DecodeArgs(n_seqs=self.batch, q=q.data_ptr(), out=out.data_ptr())
        args.lengths, args.pages = self.lengths.data_ptr(), self.pages.data_ptr()
        args.pages_stride, args.records = self.max_pages, self.records
        args.own, args.sink = rows_of(self.own_k, self.own_v), rows_of(self.sink_k, self.sink_v)
        args.k_order, args.workspace = self.order.data_ptr(), self.workspace.data_ptr()
        self.check(self.library.quire_cuda_decode(self.plan, byref(args), self.stream()))
        return out

    filled = False


class PlainLayer:
    """The same over a bf16 cache."""

    def __init__(self, torch, shape, batch, longest):
        self.torch = torch
        size = (batch, shape[1], longest, shape[2])
        self.k, self.v = (torch.zeros(size, dtype=torch.bfloat16, device="cuda") for _ in range(2))

    def bytes(self):
        return 2 * self.k.numel() * 2

    def prefill(self, k, v):
        self.k[:, :, : k.shape[1]] = k.transpose(1, 2)
        self.v[:, :, : v.shape[1]] = v.transpose(1, 2)

    def step(self, token, q, k, v):
        self.k[:, :, token], self.v[:, :, token] = k, v
        nn, k, v = self.torch.nn, self.k[:, :, : token + 1], self.v[:, :, : token + 1]
        with nn.attention.sdpa_kernel([nn.attention.SDPBackend.FLASH_ATTENTION]):
            out = nn.functional.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)
        return out[:, :, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=16384, help="tokens before, times 64")
    parser.add_argument("--steps", type=int, default=128)
    options = parser.parse_args()
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
    random = torch.Generator("cuda").manual_seed(1)
    normal = lambda *size: torch.randn(size, generator=random, device="cuda", dtype=torch.bfloat16)
    weights = lambda n: [normal(hidden, n) / hidden**0.5 for _ in range(options.layers)]
    qkv, back = weights(hidden + 2 * kv_heads * dim), weights(hidden)
    first = [normal(batch, start, kv_heads, dim) for _ in range(2)]

    def run(layers):
        for layer in layers:
            layer.prefill(*first)
        x = torch.ones(batch, hidden, dtype=torch.bfloat16, device="cuda")
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for token in range(start, longest):
            if token == start + 8:  # the first steps warm up
                begin.record()
            for layer, w_qkv, w_back in zip(layers, qkv, back):
                y = torch.nn.functional.rms_norm(x, (hidden,)) @ w_qkv
                q, k, v = y.split((hidden, kv_heads * dim, kv_heads * dim), dim=1)
                q = q.reshape(batch, heads, dim).contiguous()
                k, v = (z.reshape(batch, kv_heads, dim) for z in (k, v))
                x = x + layer.step(token, q, k, v).reshape(batch, hidden) @ w_back
        end.record()
        torch.cuda.synchronize()
        seconds = begin.elapsed_time(end) / 1e3
        return x, batch * (options.steps - 8) / seconds, sum(layer.bytes() for layer in layers)

    tokens = f"{start} + {options.steps} tokens"
    print(f"{options.layers} layers of 32x8x128, {batch} sequences, {tokens}")
    plain, plain_rate, plain_bytes = run(
        [PlainLayer(torch, shape, batch, longest) for _ in range(options.layers)]
    )
    torch.cuda.empty_cache()
    layers = [PackedLayer(torch, library, shape, batch, longest) for _ in range(options.layers)]
    packed, packed_rate, packed_bytes = run(layers)
    print(f"torch, bf16 cache: {plain_bytes / 1e9:6.2f} GB, {plain_rate:8.0f} tokens/s")
    print(f"Quire, km4:vt4:    {packed_bytes / 1e9:6.2f} GB, {packed_rate:8.0f} tokens/s")
    error = ((packed - plain).float().norm() / plain.float().norm()).item()
    smaller, faster = plain_bytes / packed_bytes, packed_rate / plain_rate
    print(f"{smaller:.2f} times less memory, {faster:.2f} times the speed;", end=" ")
    print(f"results differ by {error:.3f} of their size")
    return 0 if error < 0.5 and not any(layer.bad.item() for layer in layers) else 1


if __name__ == "__main__":
    sys.exit(main())
