#!/usr/bin/env bash
# Includes go one way: a file includes headers of its own folder and of folders before it, never of one behind it, and
# headers do not include each other in a circle. No two files of common, src, store, engine, server, plugin and cli share a base
# name, except the kernels of two instruction sets.
# usage: rooms.sh [DIR]     a source tree; this one if not given
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"
exec python3 - <<'PY'
import collections, os, pathlib, re, sys

ORDER = {  # folder of a library -> its rooms, lowest first
    "common": ["."],
    "src": ["base", "codec", "kern", "page", "seq", "batch", "attn", "pool", "cells", "file"],
    "store": ["."],
    "engine": ["model", "graph", "session", "calibrate"],
    "server": ["base", "sched", "api", "page", "http"],
    "plugin": ["."],
    "cli": ["output", "options", "text", "bench", "mlx", "eval", "reports", "cmd"],
}
MAY_USE = {"common": ["common"], "src": ["src"], "store": ["store", "src", "common"], "engine": ["engine", "src"],
           "plugin": ["plugin", "common"], "server": ["server"], "cli": ["cli", "server", "common"]}
TOP = {"command.h", "server.h"}  # what every room of its program may include

files = {lib: [p for p in pathlib.Path(lib).rglob("*.[ch]")] for lib in ORDER}
faults, includes = [], collections.defaultdict(list)


def room_of(lib, path):
    parts = path.relative_to(lib).parts
    return parts[0] if len(parts) > 1 else "."


def find(lib, path, name):
    """The file that an include names: beside the file, below a library it may use, or at the top of the tree."""
    for base in [path.parent, *map(pathlib.Path, MAY_USE[lib]), pathlib.Path(".")]:
        if (base / name).is_file():
            return pathlib.Path(os.path.normpath(base / name))
    return None


for lib, paths in files.items():
    for path in paths:
        for name in re.findall(r'^\s*#\s*include "([^"]+)"', path.read_text(), re.M):
            target = find(lib, path, name)
            if target is None or target.parts[0] == "include":
                if not (pathlib.Path("include") / name).is_file():
                    faults.append(f"{path}: {name} is not a header of {' or '.join(MAY_USE[lib])}")
                continue
            includes[path].append(target)
            other = target.parts[0]
            if other != lib:
                if other not in MAY_USE[lib]:
                    faults.append(f"{path} includes {target}, which is not of {' or '.join(MAY_USE[lib])}")
                elif other == "server" and str(target) != "server/server.h":
                    faults.append(f"{path} includes {target}; the command line sees server/server.h alone")
                continue  # a library below
            mine, its = room_of(lib, path), room_of(lib, target)
            if mine == "." or target.name in TOP:
                continue
            if its not in ORDER[lib] or mine not in ORDER[lib]:
                faults.append(f"{path}: folder {mine} or {its} is not in the list of this test")
            elif ORDER[lib].index(its) > ORDER[lib].index(mine):
                faults.append(f"{path} includes {target}, which stands above it")

state = {}


def visit(path, trail):
    if state.get(path) == "done":
        return
    if path in trail:
        faults.append("a circle of includes: " + " -> ".join(map(str, [*trail[trail.index(path):], path])))
        return
    for target in includes[path]:
        visit(target, [*trail, path])
    state[path] = "done"


for path in list(includes):
    visit(path, [])

names = collections.defaultdict(list)
for paths in files.values():
    for path in paths:
        if path.parts[:2] != ("src", "kern"):
            names[path.name].append(str(path))
faults += [f"one name, two files: {' and '.join(same)}" for same in names.values() if len(same) > 1]

for fault in faults:
    print("rooms:", fault)
print(f"rooms: {sum(map(len, files.values()))} files, {sum(map(len, includes.values()))} includes")
sys.exit(bool(faults))
PY
