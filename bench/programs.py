"""What the benches have in common: where things are, and how a program is run."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def cache_dir():
    """Where tools/ keep what they fetch and build."""
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("QUIRE_CACHE") or pathlib.Path(home) / "quire")


def processors():
    """Those this process may run on, which is not all of them under taskset."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def fail(message):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def check_outputs(*paths):
    """Before anything is measured: can these files be written? None is no file."""
    for path in (pathlib.Path(p) for p in paths if p):
        if path.is_dir():
            fail(f"cannot write '{path}': it is a directory")
        if not path.parent.is_dir():
            fail(f"cannot write '{path}': there is no directory '{path.parent}'")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            fail(f"cannot write '{path}': permission denied")


def run_text(*command, quiet=True):
    """Its standard output. `quiet` shows what it says on stderr only when it fails."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE if quiet else None,
                          text=True)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))}: {done.stderr.strip() if quiet else 'failed'}")
    return done.stdout.strip()


def run(*command, quiet=True):
    return json.loads(run_text(*command, quiet=quiet))


def use_binding(build):
    """Makes tests/py importable, with quire_lib on the shared library of this build."""
    names = ("libquire.so", "libquire.dylib")
    found = [path for name in names if (path := pathlib.Path(build).resolve() / "lib" / name).exists()]
    if not found:
        fail(f"there is no {names[0]} in '{build}/lib': run make first")
    os.environ["QUIRE_LIBRARY"] = str(found[0])
    sys.path.insert(0, str(ROOT / "tests/py"))


def model_file(name):
    """The path of a model that tools/fetch-model knows, or the path that the name is."""
    return pathlib.Path(run_text(ROOT / "tools/fetch-model", name, quiet=False) if name in ("smollm2", "gemma3") else name)
