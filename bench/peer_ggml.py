"""ggml's FLASH_ATTN_EXT, from the pinned llama.cpp sources: the peer of attention alone."""

import collections
import os
import pathlib
import platform
import subprocess
import sys
import zlib

from programs import ROOT, cache_dir

# layers: how many a call goes through, each with a cache of its own; times are of one.
Work = collections.namedtuple("Work", "shape ctx rows layers", defaults=[1])


class Missing(Exception):
    """A peer that is not here, and why."""


def run(*command):
    return subprocess.run([str(c) for c in command], check=True, text=True, capture_output=True).stdout


def machine_key():
    """Differs where a library built for this machine may not run, or is another compiler's."""
    compiler, text = os.environ.get("CC", "cc"), platform.machine()
    for option in ("--version", "-march=native", "-mcpu=native"):  # not all compilers know both of the latter
        arguments = [option] if option == "--version" else [option, "-dM", "-E", "-x", "c", os.devnull]
        text += subprocess.run([compiler, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return f"{zlib.crc32(text.encode()):08x}"


def build_ggml():
    """-> the program; ggml and it are built once per version of their sources, compiler and kind of processor."""
    quants = run(ROOT / "tools/fetch-llama").strip()
    tree, build = cache_dir() / "llama.cpp", cache_dir() / f"ggml-build-{machine_key()}"
    stamp, program = build / "quire.stamp", build / "peer_ggml_attn"
    source = ROOT / "bench/peer_ggml_attn.c"
    wanted = pathlib.Path(quants + ".stamp").read_text() + source.read_text()
    if stamp.exists() and stamp.read_text() == wanted and program.exists():
        return program
    print("peers: building ggml (a minute)", file=sys.stderr)
    off = [f"-D{name}=OFF" for name in ("GGML_OPENMP", "LLAMA_CURL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_TOOLS",
                                        "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER")]
    run("cmake", "-S", str(tree), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=ON", *off)
    run("cmake", "--build", str(build), "-j", str(os.cpu_count()), "--target", "ggml")
    run(os.environ.get("CC", "cc"), "-O2", str(source), f"-I{tree}/ggml/include", f"-L{build}/bin", f"-Wl,-rpath,{build}/bin",
        "-lggml", "-lggml-base", "-lggml-cpu", "-lm", "-o", str(program))
    stamp.write_text(wanted)
    return program


class Ggml:
    def __init__(self):
        try:
            self.program = build_ggml()
        except (subprocess.CalledProcessError, OSError) as error:
            raise Missing((getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1])

    def measure(self, work, types, threads):
        return float(run(self.program, *work.shape.split("x"), work.ctx, work.rows, *types.split(":"), threads, work.layers))
