#!/usr/bin/env python3
"""GGUF files with the shapes of known models and made weights, for measurements of speed and memory.

usage: made_models.py NAME      makes the file if it is not in the cache, and prints its path

The packages gguf and numpy come from the environment of `tools/setup bench` or `test`. Matrices are Q4_0 with random codes, drawn as such: nothing is
rounded, and a file of hundreds of megabytes takes seconds. The vocabulary has 320 tokens."""

import sys
import zlib

import programs

# (architecture, shape): Gemma 4 E2B has 35 layers: 15 have K and V of their own, of which 3 are global; 4 global layers more
# attend over the last of these. The feed-forward layers of those that share are twice as wide.
SHAPES = {
    "gemma4-e2b": ("gemma4", dict(embd=1536, ff=6144, shared_ff=12288, heads=8, kv=1, dim=512, swa_dim=256, layers=35,
                                  window=512, shared=20, per_layer=256, context=131072)),
    "gemma4-tiny": ("gemma4", dict(embd=128, ff=160, heads=8, kv=1, dim=128, swa_dim=64, layers=10, window=128, shared=5,
                                   per_layer=32, context=131072)),
    "qwen3-0.6b": ("qwen3", dict(embd=1024, ff=3072, heads=16, kv=8, dim=128, layers=28, context=131072)),
    "qwen3-tiny": ("qwen3", dict(embd=128, ff=160, heads=4, kv=2, dim=64, layers=2, context=131072)),
    # A prefill of 128K tokens by this one takes minutes.
    "prefill-tiny": ("llama", dict(embd=128, ff=160, heads=2, kv=2, dim=64, layers=2, context=262144)),
}
VERSION = 1  # of the files: raise it when anything but a shape changes them
BLOCK, BLOCK_BYTES = 32, 18  # Q4_0: an fp16 scale and 16 bytes of codes


def path_of(name):
    shape = zlib.crc32(repr(SHAPES[name]).encode())
    return programs.cache_dir() / "made" / f"{name}-{VERSION}-{shape:08x}.gguf"


def made(name):
    """The file; made by the Python that has gguf, once."""
    path, python = path_of(name), programs.cache_dir() / "venv/bin/python"
    if not path.exists():
        if not python.exists():
            programs.fail("no Python environment: run tools/setup bench")
        print(f"made_models: making {path.name}", file=sys.stderr, flush=True)
        programs.run_text(python, __file__, "--make", name)
    return path


def make(name):
    sys.path.insert(0, str(programs.ROOT / "tests/py"))
    import engine_models
    import gguf
    import numpy as np

    class Packed(engine_models.Maker):
        """Matrices are Q4_0, made of random codes."""

        def matrix(self, name, n_out, n_in, gain=1.0):
            blocks = self.random.integers(0, 256, (n_out, n_in // BLOCK, BLOCK_BYTES), dtype=np.uint8)
            scale = gain / np.sqrt(n_in) / np.sqrt((16 * 16 - 1) / 12)  # codes 0..15 are uniform
            blocks[:, :, :2] = np.array([scale], np.float16).view(np.uint8)
            self.tensors[name + ".weight"] = blocks.reshape(n_out, n_in // BLOCK * BLOCK_BYTES)

        def add_tensors(self):
            for name, data in self.tensors.items():
                packed = data.dtype == np.uint8
                self.writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q4_0 if packed else None)

    arch, shape = SHAPES[name]
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    maker = Packed(partial, arch, **shape)
    maker.fill()
    maker.write()
    partial.rename(path)  # whole or not at all


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[-1] not in SHAPES:
        sys.exit(f"usage: made_models.py {'|'.join(SHAPES)}")
    if sys.argv[1] == "--make":  # by the Python that has the packages
        make(sys.argv[2])
    else:
        print(made(sys.argv[1]))
