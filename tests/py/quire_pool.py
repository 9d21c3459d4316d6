"""A pool with one sequence, by the library's public API: append rows, attend, requantize, save
and load."""

import ctypes as C

import numpy as np

import quire_lib
from quire_lib import check, lib

BUDGET = 256 << 20


def layer_of(n_heads, n_kv_heads, k_dim, v_dim=None, k="raw", v="raw", window=0, keep=0):
    """A quire_layer. k and v name codecs; None leaves the choice to the pool's policy."""
    layer = quire_lib.Layer()
    lib.quire_layer_default(C.byref(layer))
    layer.n_heads, layer.n_kv_heads = n_heads, n_kv_heads
    layer.k_dim, layer.v_dim, layer.window, layer.keep = k_dim, v_dim or k_dim, window, keep
    layer.k, layer.v = (quire_lib.CODECS[name].codec if name else 0 for name in (k, v))
    return layer


class Pool:
    """Used as a context manager: its memory is freed at the end."""

    def __init__(self, layers, raw="f16", sinks=0, policy=None, budget=BUDGET, max_batch=None):
        self.layers = (quire_lib.Layer * len(layers))(*layers)
        self.memory, self.seq = C.c_void_p(), C.c_void_p()
        options = quire_lib.PoolOptions()
        lib.quire_pool_options_default(C.byref(options))
        options.layers, options.n_layers, options.budget_bytes = self.layers, len(layers), budget
        options.max_workers = 1
        if policy:
            options.policy = policy
        if max_batch:
            options.max_batch_tokens = max_batch
        options.raw, options.policy.sinks = quire_lib.TYPES[raw], sinks
        check(lib.quire_pool_create(C.byref(self.memory), C.byref(options)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.quire_pool_free(self.memory)

    def create(self):
        """An empty sequence."""
        check(lib.quire_seq_create(self.memory, C.byref(self.seq)))
        return self

    def load(self, path):
        """The sequence of a saved file, whatever computed it."""
        file = C.c_void_p()
        check(lib.quire_file_open(C.byref(file), str(path).encode()))
        options = quire_lib.LoadOptions(struct_size=C.sizeof(quire_lib.LoadOptions), any_identity=True)
        status = lib.quire_seq_load(self.memory, file, C.byref(options), C.byref(self.seq))
        lib.quire_file_close(file)
        check(status)
        return self

    def save(self, path):
        options = quire_lib.SaveOptions(struct_size=C.sizeof(quire_lib.SaveOptions))
        check(lib.quire_seq_save(self.seq, str(path).encode(), C.byref(options)))

    def length(self):
        return lib.quire_seq_length(self.seq)

    def step(self, k, v, q=None):
        """Appends k (layers, n, G, DK) and v. With q (layers, n, H, DK): -> attention (layers,
        n, H, DV)."""
        k, v = (np.ascontiguousarray(x, np.float32) for x in (k, v))
        n = k.shape[1]
        item, batch = quire_lib.Item(self.seq, n), C.c_void_p()
        check(lib.quire_batch_begin(self.memory, C.byref(item), C.c_size_t(1), C.byref(batch)))
        out = None if q is None else np.zeros((len(self.layers), n, self.layers[0].n_heads, self.layers[0].v_dim), np.float32)
        for i in range(len(self.layers)):
            check(lib.quire_batch_append(batch, i, quire_lib.rows_of(k[i]), quire_lib.rows_of(v[i]), 0, 1))
            if q is not None:
                rows = np.ascontiguousarray(q[i], np.float32)
                args = quire_lib.AttendArgs(q=quire_lib.rows_of(rows), out=out[i].ctypes.data)
                check(lib.quire_batch_attend(batch, i, C.byref(args), 0, 1))
        check(lib.quire_batch_commit(batch, None))
        return out

    def requantize(self, policy):
        """Converts every page. -> how many were converted"""
        stats = quire_lib.RequantizeStats()
        check(lib.quire_pool_requantize(self.memory, C.byref(policy)))
        check(lib.quire_pool_requantize_step(self.memory, 2**31 - 1, C.byref(stats)))
        assert stats.pages_left == 0
        return stats.pages_done
