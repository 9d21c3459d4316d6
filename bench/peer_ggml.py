"""ggml's FLASH_ATTN_EXT, from the pinned llama.cpp sources: the peer of attention alone."""

import collections
import os
import pathlib
import subprocess
import sys

from programs import ROOT

# layers: how many a call goes through, each with a cache of its own; times are of one.
Work = collections.namedtuple("Work", "shape ctx rows layers", defaults=[1])


class Missing(Exception):
    """A peer that is not here, and why."""


def run(*command):
    return subprocess.run([str(c) for c in command], check=True, text=True, capture_output=True).stdout


def build_ggml():
    """-> the program, linked with the ggml of the engine (tools/build-llama: once per compiler and kind of processor)."""
    prefix = pathlib.Path(subprocess.run([ROOT / "tools/build-llama"], check=True, text=True, stdout=subprocess.PIPE).stdout.strip())
    source, stamp, program = ROOT / "bench/peer_ggml_attn.c", prefix / "peer_ggml_attn.c", prefix / "peer_ggml_attn"
    if stamp.exists() and stamp.read_text() == source.read_text() and program.exists():
        return program
    libraries = [prefix / "lib" / f"lib{name}.a" for name in ("ggml", "ggml-cpu", "ggml-base")]
    run(os.environ.get("CC", "cc"), "-O2", "-c", source, f"-I{prefix}/include", "-o", prefix / "peer_ggml_attn.o")
    run(os.environ.get("CXX", "c++"), prefix / "peer_ggml_attn.o", *libraries, "-lm", "-lpthread",
        *(["-ldl"] if sys.platform == "linux" else []), "-o", program)
    stamp.write_text(source.read_text())
    return program


class Ggml:
    def __init__(self):
        try:
            self.program = build_ggml()
        except (subprocess.CalledProcessError, OSError) as error:
            raise Missing((getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1])

    def measure(self, work, types, threads):
        return float(run(self.program, *work.shape.split("x"), work.ctx, work.rows, *types.split(":"), threads, work.layers))
