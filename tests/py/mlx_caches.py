"""Caches of mlx-lm without the rest of it, caches in its layout with meta_state, and attention in
fp64 over their rows.

For the tests of prompt caches and for bench/rotating_cases.py."""

import importlib.util
import sys
import types
from pathlib import Path

import mlx.core as mx
import numpy as np


def load_module():
    """mlx_lm/models/cache.py alone, or None where mlx-lm is not installed: the package itself
    wants a whole model stack. base.py is in the same folder."""
    spec = importlib.util.find_spec("mlx_lm")
    if not spec:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "models"
    package = types.ModuleType("stand_in_lm")
    package.__path__ = [str(folder)]
    sys.modules["stand_in_lm"] = package
    for name in ("base", "cache"):
        spec = importlib.util.spec_from_file_location(f"stand_in_lm.{name}", folder / f"{name}.py")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


class MetaState:
    """A cache as mlx-lm before 0.32 has it, and as its branch with bits for K and V apart:
    state, meta_state."""

    def __init__(self, name, k, v, numbers, k_quantizer=None, v_quantizer=None):
        self.name, self.numbers, self.keys, self.values = name, numbers, k, v
        if k_quantizer:
            self.keys = mx.quantize(k, group_size=k_quantizer[0], bits=k_quantizer[1])
            self.values = mx.quantize(v, group_size=v_quantizer[0], bits=v_quantizer[1])


def save_meta_state(path, caches):
    arrays, notes = {}, {"1.model": "a test"}
    for i, c in enumerate(caches):
        notes[f"2.{i}"] = c.name
        notes.update({f"0.{i}.{j}": str(x) for j, x in enumerate(c.numbers)} or {f"0.{i}": ""})
        for side, value in enumerate((c.keys, c.values)):
            parts = {f"{i}.{side}.{j}": x for j, x in enumerate(value)} if isinstance(value, (tuple, list)) else {
                f"{i}.{side}": value}
            arrays.update(parts)
    mx.save_safetensors(str(path), arrays, notes)


def attention(q, keys, values):
    """q (H, D) over keys and values (G, n, D), in fp64: (H, D)."""
    q, keys, values = (np.asarray(x, np.float64) for x in (q, keys, values))
    grouped = q.reshape(len(keys), -1, q.shape[-1])
    scores = grouped @ keys.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True) @ values).reshape(len(q), -1)
