"""A second reader of saved sequences, written from docs/FORMAT.md, section 10, alone. Checksums are the xxhash package's."""

import struct
from dataclasses import dataclass

import numpy as np
import xxhash

import quire_page

KINDS = ["identity", "layers", "tokens", "state"]
RAW_TYPES = ["f32", "f16", "bf16"]
SINKS, OPEN, KEPT = 1, 2, 4


@dataclass
class Layer:
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int
    keep: int
    k: int
    v: int
    share: int
    group: int


def padded(n, to=64):
    return (n + to - 1) // to * to


class SavedFile:
    """codecs: {number: name}. Every number and checksum is asserted; pages are decoded when asked for."""

    def __init__(self, data, codecs):
        self.data, self.codecs = data, codecs
        assert data[:8] == bytes.fromhex("89 51 55 49 52 45 0d 0a")
        version, n_sections, length = struct.unpack_from("<IIQ", data, 8)
        assert version == 3 and length == len(data) and data[24:48] == bytes(24)
        head = padded(64 + 48 * n_sections)
        assert xxhash.xxh3_128(data[:48] + bytes(16) + data[64:head]).digest() == data[48:64]
        self.sections, at = [], head
        for i in range(n_sections):
            kind, group, offset, size = struct.unpack_from("<IIQQ", data, 64 + 48 * i)
            assert (kind, group) == (min(i, 4), max(0, i - 4)) and offset == at
            at += padded(size)
            assert xxhash.xxh3_128(data[offset:at]).digest() == data[64 + 48 * i + 24:64 + 48 * i + 40]
            assert data[offset + size:at] == bytes(at - offset - size)
            self.sections.append(data[offset:offset + size])
        assert at == len(data)
        self.identity = self.sections[0]
        self.tokens = np.frombuffer(self.sections[2], "<i4")
        self._layers()
        self._state()

    def _layers(self):
        section = self.sections[1]
        page_format, rotation, tokens, raw, self.sinks, n_layers, self.n_groups, zero = struct.unpack_from("<8I", section)
        assert (page_format, rotation, tokens, zero) == (2, 1, 64, 0)
        self.raw = RAW_TYPES[raw]
        self.layers = [Layer(*struct.unpack_from("<10i", section, 32 + 48 * i)) for i in range(n_layers)]
        self.records = [quire_page.Record(self.codecs[x.k], self.codecs[x.v], x.k_dim, x.v_dim, self.raw) for x in self.layers]
        self.orders, at = [], 32 + 48 * n_layers  # (KV heads, DK) of each layer, or None
        for layer in self.layers:
            order = None
            if layer.share >= 0:
                order = self.orders[layer.share]
            elif self.codecs[layer.k] in quire_page.MIXED:
                order = np.frombuffer(section, "<u2", layer.kv_heads * layer.k_dim, at).reshape(layer.kv_heads, layer.k_dim)
                assert (np.sort(order) == np.arange(layer.k_dim)).all()
                at += 2 * order.size
            self.orders.append(order)
        assert at == len(section)
        keys = []
        for layer in self.layers:
            key = (layer.window, layer.keep)
            if key not in keys:
                keys.append(key)
            assert layer.group == keys.index(key)
        assert len(keys) == self.n_groups and len(self.sections) == 4 + self.n_groups
        self.raw_group = [all(self.is_raw(x) for x in self.layers if x.group == g) for g in range(self.n_groups)]

    def _state(self):
        section = self.sections[3]
        self.length, self.kept_page, self.history, self.exact_tokens = struct.unpack_from("<iiIi", section)
        n_pages = self.length // 64
        assert self.history < 16 and (self.history == 0) == (self.exact_tokens == self.length)
        assert len(section) == 16 + self.n_groups * (24 + 8 * n_pages)
        self.parts = []
        for g in range(self.n_groups):
            at = 16 + g * (24 + 8 * n_pages)
            first, flags, sink_rows, open_rows = struct.unpack_from("<iIQQ", section, at)
            assert sink_rows >> self.sinks == 0 and open_rows >> self.length % 64 == 0
            self.parts.append((first, flags, list(struct.unpack_from(f"<{n_pages}Q", section, at + 24))))

    def is_raw(self, layer):
        return all(self.codecs[c] in ("raw", self.raw) for c in (layer.k, layer.v))

    def in_natural_order(self, layer, head, placed):
        if self.orders[layer] is None:
            return placed
        k = np.empty_like(placed)
        k[:, self.orders[layer][head]] = placed
        return k

    def rows(self, layer, head):
        """{(part, page): (K rows, V rows)} of one head: part is "sinks", "kept", "open" or "page" (decoded)."""
        target, out, at = self.layers[layer], {}, 0
        section = np.frombuffer(self.sections[4 + target.group], np.uint8)
        first, flags, held = self.parts[target.group]
        size = quire_page.TYPE_BYTES[self.raw]
        mine = [(i, x) for i, x in enumerate(self.layers) if x.group == target.group and x.share < 0]

        def raw_leaf(name, page, n_rows, align):
            nonlocal at
            for i, x in mine:
                if name == "sinks" and self.is_raw(x):
                    continue
                for h in range(x.kv_heads):
                    k_bytes, v_bytes = n_rows * x.k_dim * size, n_rows * x.v_dim * size
                    if (i, h) == (layer, head):
                        k, v = section[at:at + k_bytes], section[at + k_bytes:at + k_bytes + v_bytes]
                        out[name, page] = tuple(
                            quire_page.from_bytes(np.ascontiguousarray(y), self.raw).reshape(n_rows, -1) for y in (k, v))
                    at += padded(k_bytes + v_bytes, align)

        if flags & SINKS:
            raw_leaf("sinks", 0, self.sinks, 128)
        if flags & KEPT:
            raw_leaf("kept", self.kept_page, 64, 1)
        if flags & OPEN:
            raw_leaf("open", self.length // 64, self.length % 64, 1)
        for page, is_held in enumerate(held):
            if not is_held:
                continue
            for i, x in mine:
                for h in range(x.kv_heads):
                    n = self.records[i].n_bytes
                    if (i, h) == (layer, head):
                        k, v = self.records[i].decode(np.ascontiguousarray(section[at:at + n]))
                        out["page", page] = self.in_natural_order(i, h, k), v
                    at += n
        assert at == section.size
        return out
