#!/usr/bin/env python3
"""Attention of PyTorch (scaled_dot_product_attention, bf16), timed as quire_cuda_bench times ours.

One JSON object for each measurement, a line each. usage: peer_cuda.py [--quick] [--prefill]

Prefill is measured in two ways: "same FLOP", without a mask over as many keys as a row of ours sees
in the mean, which is an easier problem; and with the exact mask, aligned at the lower right.
"""

import json
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

CASES = [(32, 32768), (8, 32768), (32, 8192), (1, 131072), (1, 32768), (1, 8192)]
# Sequences, tokens before the rows, rows: as in cuda_bench.cu.
PREFILLS = [
    (1, 16384, 4096),
    (1, 65536, 2048),
    (1, 16384, 512),
    (1, 0, 4096),
    (1, 32768, 16),
    (32, 32768, 4),
    (32, 32768, 8),
]
HEADS, KV_HEADS, DIM = 32, 8, 128
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def median_us(works):
    graphs = []
    for work in works:
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        graph.replay()  # the first time takes longer
        graphs.append(graph)
    times = []
    for i in range(35):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        graphs[i % len(graphs)].replay()
        stop.record()
        stop.synchronize()
        if i >= 5:
            times.append(start.elapsed_time(stop) * 1e3)
    return sorted(times)[len(times) // 2]


def measure(backend, batch, context):
    size = 2 * batch * KV_HEADS * context * DIM * 2
    works = []
    for _ in range(max(1, min(32, int(400e6 / size)))):
        q = torch.randn(batch, HEADS, 1, DIM, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(batch, KV_HEADS, context, DIM, device="cuda", dtype=torch.bfloat16)
        v = torch.randn_like(k)
        works.append(lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    with sdpa_kernel([BACKENDS[backend]]), torch.no_grad():
        us = median_us(works)
    return {
        "what": "peer",
        "peer": f"torch {backend} bf16",
        "batch": batch,
        "context": context,
        "us": round(us, 2),
        "bytes": size,
        "tb_per_s": round(size / us / 1e6, 3),
    }


def measure_prefill(backend, exact, batch, before, rows):
    keys = before + rows if exact else before + rows // 2
    q = torch.randn(batch, HEADS, rows, DIM, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(batch, KV_HEADS, keys, DIM, device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(k)
    if exact and before == 0:
        options = {"is_causal": True}
    else:
        options = {"attn_mask": causal_lower_right(rows, keys)} if exact else {}
    with sdpa_kernel([BACKENDS[backend]]), torch.no_grad():
        us = median_us(
            [lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)]
        )
    flop = 4 * DIM * HEADS * batch * (rows * before + rows * (rows + 1) / 2)
    return {
        "what": "prefill peer",
        "peer": f"torch {backend} bf16, {'exact mask' if exact else 'same FLOP'}",
        "batch": batch,
        "before": before,
        "rows": rows,
        "us": round(us, 1),
        "tflop_per_s": round(flop / us / 1e6),
    }


def main():
    quick = "--quick" in sys.argv
    print(
        json.dumps(
            {"what": "torch", "version": torch.__version__, "cudnn": torch.backends.cudnn.version()}
        )
    )
    for backend in BACKENDS:
        for batch, before, rows in PREFILLS:
            for exact in False, True:
                if quick and rows != 512:
                    continue
                try:
                    print(
                        json.dumps(measure_prefill(backend, exact, batch, before, rows)), flush=True
                    )
                except RuntimeError as error:
                    print(
                        f"peer_cuda: {backend} {batch}x{before}+{rows}, exact mask {exact}: "
                        f"{str(error).splitlines()[0]}",
                        file=sys.stderr,
                    )
                torch.cuda.empty_cache()
        for batch, context in CASES:
            if (quick and context >= 32768) or "--prefill" in sys.argv:
                continue
            try:
                print(json.dumps(measure(backend, batch, context)), flush=True)
            except RuntimeError as error:
                print(
                    f"peer_cuda: {backend} {batch}x{context}: {str(error).splitlines()[0]}",
                    file=sys.stderr,
                )
            torch.cuda.empty_cache()


main()
