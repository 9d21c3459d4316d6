#!/usr/bin/env bash
# What tools/setup says on machines that are not like this one: a Mac, one whose Python is too old. Programs of such a machine
# are stubs, and nothing is installed.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# A PATH with the tools that the script itself uses, and whatever a case puts there.
tools() {
    rm -rf "$tmp/bin" && mkdir "$tmp/bin"
    local tool
    for tool in bash env dirname cat cksum sed sort tr tail id mkdir grep; do
        ln -s "$(command -v "$tool")" "$tmp/bin/$tool"
    done
}
stub() { # NAME SCRIPT
    printf '#!%s\n%s\n' "$(command -v bash)" "$2" >"$tmp/bin/$1"
    chmod +x "$tmp/bin/$1"
}
# A stand-in for Python that is of a version and has all modules.
stub_python() { stub "$1" "case \$* in *version_info*) exit $3 ;; *) echo $2 ;; esac"; }
# expect WHAT TEXT..: the last run said all of these.
expect() {
    local what=$1 text
    shift
    for text in "$@"; do
        grep -q -F -e "$text" "$tmp/log" || { echo "setup: $what: not said: $text"; cat "$tmp/log"; exit 1; }
    done
    echo "setup: $what"
}
setup() { (PATH=$tmp/bin QUIRE_CACHE=$tmp/cache "$@" bash "$root/tools/setup" "$group") >"$tmp/log" 2>&1; }
run_fails() { if setup "$@"; then echo "setup: it succeeded"; cat "$tmp/log"; exit 1; fi; }

group=build
tools
stub uname 'echo Darwin'
run_fails env
expect "a bare Mac gets names of Homebrew" "xcode-select --install" "brew install cmake " " jansson " " libsodium " " lmdb " \
    " ninja " " pkgconf " " python"
! grep -q "apt-get\|-dev" "$tmp/log" || { echo "setup: Debian's names on a Mac"; cat "$tmp/log"; exit 1; }

group=bench
stub cc 'exit 1'
stub c++ 'exit 1'
stub cmake ''
stub ninja ''
stub pkg-config ''
stub gnuplot ''
stub_python python3 3.9.6 1
run_fails env PYTHON="$tmp/bin/python3"
expect "a Python that is too old is named, and what is needed" "needs Python 3.11 or newer" "$tmp/bin/python3 is 3.9.6" \
    "PYTHON=FILE tools/setup bench"
run_fails env PYTHON=/nowhere/python
expect "so is one that is not there" "needs Python 3.11 or newer" "there is none here"

# Functions by themselves.
call() { (PATH=$tmp/bin && source "$root/tools/setup" build && "$@"); }
stub_python python3 3.12.1 0
[ "$(PYTHON=$tmp/bin/python3 call python)" = "$tmp/bin/python3" ] || { echo "setup: a new Python is not taken"; exit 1; }
echo "setup: a Python that is new enough is taken"

mkdir -p "$tmp/brew/include" "$tmp/other"
touch "$tmp/brew/include/made_up_1.h" "$tmp/other/made_up_2.h"
stub pkg-config "[ \"\$*\" != '--variable=includedir made_up' ] || echo '$tmp/other'"
for file in made_up_1.h made_up_2.h; do
    HOMEBREW_PREFIX=$tmp/brew call header $file made_up || { echo "setup: $file is not found"; exit 1; }
done
! HOMEBREW_PREFIX=$tmp/brew call header made_up_3.h made_up || { echo "setup: made_up_3.h is found"; exit 1; }
echo "setup: headers are found where Homebrew and pkg-config have them"

[ "$(call eval 'system=Linux; look_test() { :; }; look_all; echo "${missing[*]}"')" = "chromium chromium-driver" ] ||
    { echo "setup: Chromium is not asked for"; exit 1; }
echo "setup: group all asks for Chromium where there is none"

# Packages of Python: their lists have a hash for each, and pip is told to demand them.
python3 - "$root/tools" <<'PY'
import pathlib, re, sys

tools, faults = pathlib.Path(sys.argv[1]), []


def pins(path):
    """What a list names, without options, and the lines of each."""
    lines = re.sub(r"^(#|-).*\n", "", path.read_text(), flags=re.M).replace("\\\n", " ").split("\n")
    return {re.sub(r"\[.*?\]|\s*;.*|\s.*", "", line): line for line in lines if line.strip()}


lists = sorted(tools.glob("requirements-*.txt"))
for path in lists:
    for name, line in pins(path).items():
        if not re.search(r"--hash=sha256:[0-9a-f]{64}(\s|$)", line) or not re.fullmatch(r"[\w.-]+==[\w.]+", name):
            faults.append(f"{path.name}: {name} has no version or no hash")
for path in sorted(tools.glob("requirements-*.in")):
    for name in pins(path).keys() - pins(path.with_suffix(".txt")).keys():
        faults.append(f"{path.with_suffix('.txt').name} does not have {name}: {path.name} says how to make it")
sys.exit("\n".join(f"setup: {fault}" for fault in faults) if faults or not lists else 0)
PY
echo "setup: every list of Python packages has hashes, of the versions asked for"

ln -s "$(command -v cp)" "$tmp/bin/cp"
stub python3 "case \$* in '-m venv'*) mkdir -p \"\$4/bin\" && cp \"\$0\" \"\$4/bin/python\" ;; '-m pip'*) echo \"\$*\" >>'$tmp/pip' ;; esac"
QUIRE_CACHE=$tmp/cache PYTHON=$tmp/bin/python3 call eval 'cd "$root"; python_environment; PEERS=all peers' 2>"$tmp/log" ||
    { echo "setup: no Python environment"; cat "$tmp/log"; exit 1; }
[ "$(grep -c . "$tmp/pip")" = 3 ] && ! grep -v -e --require-hashes "$tmp/pip" ||
    { echo "setup: pip may install what has no hash"; cat "$tmp/log" "$tmp/pip"; exit 1; }
echo "setup: pip is told to demand hashes"
