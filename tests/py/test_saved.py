"""Files of the library against quire_file.py, which was written from docs/FORMAT.md alone."""

import ctypes as C
import json
import os
import subprocess

import numpy as np
import pytest

import quire_file
import quire_lib
import quire_page
from quire_lib import check, lib

KV_HEADS, CODECS = 2, {info.codec: name for name, info in quire_lib.CODECS.items()}


def save(path, kv, windows, n, raw="f16", sinks=4):
    """Layers of head sizes 64 and 96 by turns; returns their rows, [(K, V)] of shape (n, KV heads, dim)."""
    layers, kept = (quire_lib.Layer * len(windows))(), []
    for i, (layer, (window, keep)) in enumerate(zip(layers, windows)):
        lib.quire_layer_default(C.byref(layer))
        layer.n_heads, layer.n_kv_heads, layer.k_dim, layer.v_dim = 4, KV_HEADS, 64 + 32 * (i % 2), 64
        layer.window, layer.keep = window, keep
        orders = np.argsort(np.random.default_rng(i).random((KV_HEADS, layer.k_dim))).astype(np.uint16)
        layer.k_order = orders.ctypes.data
        kept.append(orders)
        if kv[i]:
            layer.k, layer.v = (quire_lib.CODECS[c].codec for c in kv[i].split(":"))
    options = quire_lib.PoolOptions()
    lib.quire_pool_options_default(C.byref(options))
    options.layers, options.n_layers, options.budget_bytes = layers, len(layers), 64 << 20
    options.raw, options.policy.sinks = quire_lib.TYPES[raw], sinks
    pool, seq, batch = (C.c_void_p() for _ in range(3))
    check(lib.quire_pool_create(C.byref(pool), C.byref(options)))
    check(lib.quire_seq_create(pool, C.byref(seq)))
    random = np.random.default_rng(n)
    rows = [tuple(random.standard_normal((n, KV_HEADS, d)).astype(np.float32) for d in (x.k_dim, x.v_dim)) for x in layers]
    for at in range(0, n, 50):
        now = min(50, n - at)
        check(lib.quire_batch_begin(pool, C.byref(quire_lib.Item(seq, now)), 1, C.byref(batch)))
        for i, (k, v) in enumerate(rows):
            check(lib.quire_batch_append(batch, i, *(quire_lib.rows_of(np.ascontiguousarray(x[at:at + now])) for x in (k, v)), 0, 1))
        check(lib.quire_batch_commit(batch, None))
    tokens = np.arange(n + 1, dtype=np.int32) * 3
    o = quire_lib.SaveOptions(C.sizeof(quire_lib.SaveOptions), b"who made it", 11, tokens.ctypes.data, n + 1)
    check(lib.quire_seq_save(seq, str(path).encode(), C.byref(o)))
    lib.quire_pool_free(pool)
    return rows


@pytest.mark.parametrize("raw", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("n", [0, 30, 64, 200, 333])
def test_read_by_the_document(tmp_path, raw, n):
    kv = ["kc8:vt4", "", "kc4:vt3", "kc8:vt8", "tq4:tq4", "km4:vt4", "km3:vt8"]
    windows = [(0, 0), (0, 0), (100, 0), (70, 4), (70, 70), (0, 0), (100, 0)]
    rows = save(tmp_path / "saved", kv, windows, n, raw)
    file = quire_file.SavedFile((tmp_path / "saved").read_bytes(), CODECS)
    assert file.identity == b"who made it" and file.length == n and file.raw == raw and file.sinks == 4
    assert np.array_equal(file.tokens, np.arange(n + 1) * 3)

    def as_raw(x):
        return quire_page.from_bytes(quire_page.to_bytes(x, raw), raw).reshape(x.shape)

    for i, layer in enumerate(file.layers):
        for head in range(KV_HEADS):
            parts = file.rows(i, head)
            k, v = (as_raw(np.ascontiguousarray(x[:, head])) for x in rows[i])
            for (name, page), (got_k, got_v) in parts.items():
                first = page * 64
                if name == "page" and not file.is_raw(layer):  # what an encoder by the document makes of it
                    skip = 4 if page == 0 else 0
                    record = file.records[i]
                    order = np.arange(layer.k_dim) if file.orders[i] is None else file.orders[i][head]
                    placed = np.ascontiguousarray(k[first:first + 64][:, order])
                    wanted = list(record.decode(record.encode(placed, v[first:first + 64], skip)))
                    wanted[0] = file.in_natural_order(i, head, wanted[0])
                    assert np.array_equal(got_k[skip:], wanted[0][skip:]) and np.array_equal(got_v[skip:], wanted[1][skip:])
                else:
                    m = len(got_k)
                    assert np.array_equal(got_k, k[first:first + m]) and np.array_equal(got_v, v[first:first + m])
            # Everything that a later query can see is there.
            start = max(0, n - layer.window + 1) if layer.window else 0
            seen = {t // 64 for t in range(n) if t >= start or t < layer.keep}
            there = {page for name, page in parts if name in ("page", "open")}
            if layer.keep and layer.keep <= file.sinks and ("sinks", 0) in parts:
                there.add(0)
            assert seen <= there
            assert (("kept", n // 64 - 1) in parts) == (n >= 64 and not file.raw_group[layer.group])


@pytest.mark.skipif(not os.path.exists(os.environ.get("QUIRE_PROGRAM", "")), reason="built without the program")
def test_convert_gives_natural_order(tmp_path):
    """Rows of km4 as another program gets them: the channels are where they were."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs.safetensors"
    save(ours, ["km4:vt4"], [(0, 0)], 200)
    subprocess.run([os.environ["QUIRE_PROGRAM"], "convert", ours, theirs, "--kv", "none"], check=True)
    data = theirs.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:start])["0.0"]
    assert entry["dtype"] == "F16" and entry["shape"] == [1, KV_HEADS, 200, 64]
    got = np.frombuffer(data[start:], "<f2")[entry["data_offsets"][0] // 2:entry["data_offsets"][1] // 2].reshape(entry["shape"])
    file = quire_file.SavedFile(ours.read_bytes(), CODECS)
    for head in range(KV_HEADS):
        parts = file.rows(0, head)
        wanted = np.concatenate([parts["page", 0][0], parts["page", 1][0], parts["kept", 2][0], parts["open", 3][0]])
        wanted[:4] = parts["sinks", 0][0]
        assert np.array_equal(got[0, head], wanted.astype(np.float16))
