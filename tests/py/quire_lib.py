"""ctypes binding of the part of include/quire.h that tests and benches use. QUIRE_LIBRARY names the shared library."""

import ctypes as C
import os

import numpy as np

T = 64
TYPES = {"f32": 0, "f16": 1, "bf16": 2}
SIDES = {"k": 1, "v": 2}
OK, E_INVALID, E_UNSUPPORTED, E_UNKNOWN, E_VALUE = 0, 1, 2, 3, 11


class Pair(C.Structure):
    _fields_ = [("k", C.c_int), ("v", C.c_int)]


class CodecInfo(C.Structure):
    _fields_ = [
        ("codec", C.c_int),
        ("name", C.c_char_p),
        ("family", C.c_char_p),
        ("summary", C.c_char_p),
        ("bits", C.c_int32),
        ("group", C.c_int32),
        ("for_k", C.c_bool),
        ("for_v", C.c_bool),
        ("ordered", C.c_bool),
    ]


class PresetInfo(C.Structure):
    _fields_ = [("name", C.c_char_p), ("pair", Pair), ("sinks", C.c_int32)]


class Policy(C.Structure):
    _fields_ = [
        ("pair", Pair),
        ("windowed", Pair),
        ("edge", Pair),
        ("edge_first", C.c_int32),
        ("edge_last", C.c_int32),
        ("sinks", C.c_int32),
    ]


class PageShape(C.Structure):
    _fields_ = [("pair", Pair), ("k_dim", C.c_int32), ("v_dim", C.c_int32), ("raw", C.c_int)]


class Arrays(C.Structure):
    _fields_ = [(name, C.c_void_p) for name in ("codes", "scales", "biases", "norms", "residual_norms", "signs", "means")]


class Layer(C.Structure):
    _fields_ = [(n, C.c_int32) for n in ("n_heads", "n_kv_heads", "k_dim", "v_dim", "window", "keep")] + [
        ("scale", C.c_float), ("softcap", C.c_float), ("alibi", C.c_void_p), ("sink_logits", C.c_void_p),
        ("k", C.c_int), ("v", C.c_int), ("share", C.c_int32), ("k_order", C.c_void_p),
        ("k_feedback", C.c_void_p), ("k_rope", C.c_void_p)]


class PoolOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("layers", C.POINTER(Layer)), ("n_layers", C.c_int32),
                ("policy", Policy), ("budget_bytes", C.c_size_t), ("raw", C.c_int)] + [
        (n, C.c_int32) for n in ("max_seqs", "max_tokens", "max_batch_tokens", "max_batches", "max_workers")] + [
        ("allocator", C.c_void_p), ("cpu", C.c_char_p), ("exact_trim", C.c_bool)]


class LoadOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("identity", C.c_void_p), ("identity_bytes", C.c_size_t),
                ("any_identity", C.c_bool), ("reseal", C.c_bool)]


class Item(C.Structure):
    _fields_ = [("seq", C.c_void_p), ("n_tokens", C.c_int32)]


class Rows(C.Structure):
    _fields_ = [("data", C.c_void_p), ("type", C.c_int), ("row_stride", C.c_size_t)]


class AttendArgs(C.Structure):
    _fields_ = [("q", Rows), ("out", C.c_void_p), ("out_stride", C.c_size_t), ("lse", C.c_void_p),
                ("mask", C.c_void_p), ("mask_row_stride", C.c_size_t), ("mask_head_stride", C.c_size_t),
                ("mask_per_kv_head", C.c_bool)]


class SaveOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("identity", C.c_char_p), ("identity_bytes", C.c_size_t),
                ("tokens", C.c_void_p), ("n_tokens", C.c_int32), ("any_attention", C.c_bool)]


class RequantizeStats(C.Structure):
    _fields_ = [("pages_done", C.c_int64), ("pages_left", C.c_int64), ("bytes_before", C.c_size_t),
                ("bytes_after", C.c_size_t)]


class QuireError(Exception):
    def __init__(self, status):
        self.status = status
        text = lib.quire_last_error().decode()
        super().__init__(f"{lib.quire_status_name(status).decode()}: {text}")


def _load():
    path = os.environ.get("QUIRE_LIBRARY")
    if not path:
        raise RuntimeError("QUIRE_LIBRARY must name the shared library under test")
    lib = C.CDLL(path)
    shape, pointer = C.POINTER(PageShape), C.c_void_p
    signatures = {
        "quire_last_error": (C.c_char_p,),
        "quire_status_name": (C.c_char_p, C.c_int),
        "quire_status_text": (C.c_char_p, C.c_int),
        "quire_codec_count": (C.c_size_t,),
        "quire_codec_at": (C.c_int, C.c_size_t, C.POINTER(CodecInfo)),
        "quire_codec_name": (C.c_char_p, C.c_int),
        "quire_preset_count": (C.c_size_t,),
        "quire_preset_at": (C.c_int, C.c_size_t, C.POINTER(PresetInfo)),
        "quire_policy_parse": (C.c_int, C.c_char_p, C.POINTER(Policy)),
        "quire_page_bytes": (C.c_int, shape, C.POINTER(C.c_size_t)),
        "quire_page_encode": (C.c_int, shape, pointer, pointer, C.c_int32, pointer),
        "quire_page_decode": (C.c_int, shape, pointer, pointer, pointer),
        "quire_page_export": (C.c_int, shape, C.c_int, pointer, C.POINTER(Arrays)),
        "quire_page_import": (C.c_int, shape, C.c_int, C.POINTER(Arrays), pointer),
        "quire_layer_default": (None, pointer),
        "quire_pool_options_default": (None, pointer),
        "quire_pool_create": (C.c_int, pointer, pointer),
        "quire_pool_free": (None, pointer),
        "quire_pool_requantize": (C.c_int, pointer, C.POINTER(Policy)),
        "quire_pool_requantize_step": (C.c_int, pointer, C.c_int32, pointer),
        "quire_channel_order": (C.c_int, pointer, C.c_int32, pointer),
        "quire_seq_create": (C.c_int, pointer, pointer),
        "quire_seq_length": (C.c_int32, pointer),
        "quire_seq_save": (C.c_int, pointer, C.c_char_p, pointer),
        "quire_seq_load": (C.c_int, pointer, pointer, pointer, pointer),
        "quire_file_open": (C.c_int, pointer, C.c_char_p),
        "quire_file_close": (None, pointer),
        "quire_batch_begin": (C.c_int, pointer, pointer, C.c_size_t, pointer),
        "quire_batch_append": (C.c_int, pointer, C.c_int32, Rows, Rows, C.c_int32, C.c_int32),
        "quire_batch_attend": (C.c_int, pointer, C.c_int32, pointer, C.c_int32, C.c_int32),
        "quire_batch_commit": (C.c_int, pointer, pointer),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


lib = _load()


def check(status):
    if status != OK:
        raise QuireError(status)


def codecs():
    """{name: CodecInfo}"""
    out = {}
    for i in range(lib.quire_codec_count()):
        info = CodecInfo()
        check(lib.quire_codec_at(i, C.byref(info)))
        out[info.name.decode()] = info
    return out


def presets():
    """{name: PresetInfo}"""
    out = {}
    for i in range(lib.quire_preset_count()):
        info = PresetInfo()
        check(lib.quire_preset_at(i, C.byref(info)))
        out[info.name.decode()] = info
    return out


def policy(text):
    out = Policy()
    check(lib.quire_policy_parse(text.encode(), C.byref(out)))
    return out


CODECS = codecs()


def zeros_aligned(n_bytes):
    """uint8 zeros at a multiple of 64."""
    memory = np.zeros(n_bytes + 64, np.uint8)
    at = -memory.ctypes.data % 64
    return memory[at : at + n_bytes]


def rows_of(x):
    """A contiguous float32 array as quire_rows."""
    assert x.dtype == np.float32 and x.flags.c_contiguous
    return Rows(x.ctypes.data, TYPES["f32"], 0)


def _rows(x, dim):
    x = np.ascontiguousarray(x, np.float32)
    assert x.shape == (T, dim)
    return x


class Page:
    """The functions on one page shape. Pages are uint8 arrays."""

    def __init__(self, k_codec, v_codec, k_dim, v_dim, raw="f16"):
        pair = Pair(CODECS[k_codec].codec, CODECS[v_codec].codec)
        self.shape = PageShape(pair, k_dim, v_dim, TYPES[raw])
        self.raw = raw
        self.codec = {"k": k_codec, "v": v_codec}
        self.dim = {"k": k_dim, "v": v_dim}
        size = C.c_size_t()
        check(lib.quire_page_bytes(C.byref(self.shape), C.byref(size)))
        self.n_bytes = size.value

    def encode(self, k, v, skip=0, page=None):
        k, v = _rows(k, self.dim["k"]), _rows(v, self.dim["v"])
        if page is None:
            page = zeros_aligned(self.n_bytes)
            page[:] = 0xA5  # what encode leaves alone shows
        check(lib.quire_page_encode(C.byref(self.shape), k.ctypes.data, v.ctypes.data, skip, page.ctypes.data))
        return page

    def decode(self, page):
        page = self._aligned(page)
        k, v = (np.full((T, self.dim[s]), np.nan, np.float32) for s in "kv")
        check(lib.quire_page_decode(C.byref(self.shape), page.ctypes.data, k.ctypes.data, v.ctypes.data))
        return k, v

    def _aligned(self, page):
        assert page.dtype == np.uint8 and page.size == self.n_bytes
        out = zeros_aligned(self.n_bytes)
        out[:] = page
        return out

    def empty_arrays(self, side):
        """The arrays of quire_arrays that this side's codec uses, by name."""
        info, dim = CODECS[self.codec[side]], self.dim[side]
        family, bits = info.family.decode(), info.bits
        if family == "affine":
            scale = np.uint32 if self.raw == "f32" else np.uint16  # as bits: numpy has no bf16
            shape = (T, dim // info.group)
            return {
                "codes": np.zeros((T, dim * bits // 32), np.uint32),
                "scales": np.zeros(shape, scale),
                "biases": np.zeros(shape, scale),
            }
        if family == "block":
            return {"codes": np.zeros((T, dim // 32, 2 + 4 * bits), np.uint8)}
        prod = family == "prod"
        mse_bits = bits - 1 if prod else bits
        out = {
            "codes": np.zeros((T, (dim * mse_bits + 31) // 32), np.uint32),
            "norms": np.zeros(T, np.float32),
        }
        if family == "book" and side == "k":
            out["means"] = np.zeros(dim, np.float32)
        if prod:
            out["residual_norms"] = np.zeros(T, np.float32)
            out["signs"] = np.zeros((T, (dim + 31) // 32), np.uint32)
        return out

    def export_arrays(self, side, page):
        out, page = self.empty_arrays(side), self._aligned(page)
        struct = Arrays(**{name: a.ctypes.data for name, a in out.items()})
        check(lib.quire_page_export(C.byref(self.shape), SIDES[side], page.ctypes.data, C.byref(struct)))
        return out

    def import_arrays(self, side, arrays, page=None):
        page = zeros_aligned(self.n_bytes) if page is None else self._aligned(page)
        kept = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
        for name, a in self.empty_arrays(side).items():
            if name == "means" and name not in kept:
                continue  # of systems that have none
            assert kept[name].nbytes == a.nbytes and kept[name].itemsize == a.itemsize, name
        struct = Arrays(**{name: a.ctypes.data for name, a in kept.items()})
        check(lib.quire_page_import(C.byref(self.shape), SIDES[side], C.byref(struct), page.ctypes.data))
        return page
