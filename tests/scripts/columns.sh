#!/usr/bin/env bash
# Lines of C files and of prose are at most 100 columns long. Tables, code blocks and headings, which cannot be wrapped,
# may be longer.
# usage: columns.sh [DIR]     a source tree; this one if not given. Only tracked files count, if it is a git checkout.
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"
exec python3 - <<'PY'
import pathlib, subprocess, sys

LIMIT = 100

listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True)
names = listed.stdout.split("\n") if listed.returncode == 0 else \
    [str(p) for p in pathlib.Path(".").rglob("*") if p.parts[0] != "build"]
names = [n for n in names if n.endswith((".md", ".c", ".h", ".cu", ".cuh")) and pathlib.Path(n).is_file()]
if not names:
    sys.exit("columns: no file to look at")

faults = []
for name in names:
    in_code = False
    for number, line in enumerate(pathlib.Path(name).read_text(encoding="utf-8").split("\n"), 1):
        if name.endswith(".md"):
            fence = line.lstrip().startswith("```")
            in_code ^= fence
            if in_code or fence or line.startswith(("    ", "#")) or line.lstrip().startswith("|"):
                continue
        if len(line) > LIMIT:
            faults.append(f"{name}:{number}: {len(line)} columns")
for fault in faults:
    print(fault)
if faults:
    sys.exit(f"columns: {len(faults)} lines are longer than {LIMIT} columns")
print(f"columns: {len(names)} files, no line longer than {LIMIT} columns")
PY
