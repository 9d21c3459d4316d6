#!/usr/bin/env bash
# Links of the documents lead to files of the tree, and to headings that are there. Addresses of the web are not followed.
# usage: links.sh [DIR]     a source tree; this one if not given. Only tracked files count, if it is a git checkout.
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"
exec python3 - <<'PY'
import collections, os, pathlib, re, subprocess, sys

listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True)
names = listed.stdout.split("\n") if listed.returncode == 0 else \
    [str(p) for p in pathlib.Path(".").rglob("*") if p.parts[0] != "build"]
documents = {}  # path -> its text, without blocks of code
for name in names:
    if name.endswith(".md") and pathlib.Path(name).is_file():
        text = pathlib.Path(name).read_text(encoding="utf-8")
        documents[name] = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
if not documents:
    sys.exit("links: no file to look at")


def anchors(text):
    """As GitHub makes them: letters, digits, - and _ of the heading; a number behind the second of one name."""
    seen, result = collections.Counter(), set()
    for heading in re.findall(r"^#{1,6} +(.*)", text, re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = "".join(c for c in plain if c.isalnum() or c in " -_").replace(" ", "-")
        result.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return result


faults, n_links = [], 0
for name, text in documents.items():
    text = re.sub(r"`[^`\n]*`", "", text)
    for link in re.findall(r'\]\(([^)\s]+)|\b(?:src|srcset|href)="([^"\s]+)"', text):
        link = link[0] or link[1]
        if re.match(r"[a-z]+:", link):
            continue
        n_links += 1
        path, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
        if not os.path.exists(target):
            faults.append(f"{name}: {link}: there is no such file")
        elif anchor and anchor not in anchors(documents.get(target, "")):
            faults.append(f"{name}: {link}: there is no such heading")
for fault in faults:
    print("links:", fault)
print(f"links: {n_links} in {len(documents)} files")
sys.exit(bool(faults))
PY
