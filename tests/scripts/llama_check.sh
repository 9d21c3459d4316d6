#!/usr/bin/env bash
# An installed llama.cpp that the engine cannot be built on is passed over with the reason (cmake/llama_check), and one that
# it can be built on is taken. The packages are that of the build under test with its headers changed.
# usage: llama_check.sh CC CXX CMAKE_GENERATOR LLAMA_LIB_DIR
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cc=$1 cxx=$2 generator=$3 installed=$(dirname "$4")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cache=${QUIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quire}

mkdir -p "$tmp/use" "$tmp/empty"
cat >"$tmp/use/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.21)
project(use C)
find_package(Threads REQUIRED)
include($root/cmake/llama.cmake)
CMAKE
export PIP_NO_INDEX=1 # so nothing can be built from an empty cache: the sources are not fetched either

# package NAME: the installed one again, its headers free to be changed.
package() {
    mkdir -p "$tmp/$1/lib"
    cp -R "$installed/include" "$tmp/$1/include"
    cp -R "$installed/lib/cmake" "$tmp/$1/lib/cmake"
    for library in "$installed"/lib/lib*; do
        ln -s "$library" "$tmp/$1/lib/"
    done
}
configure() { # NAME CACHE
    QUIRE_CACHE=$2 cmake -S "$tmp/use" -B "$tmp/build-$1" -G "$generator" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
        -DCMAKE_PREFIX_PATH="$tmp/$1" >"$tmp/log" 2>&1
}
fail() {
    echo "llama_check: $*"
    tail -n 30 "$tmp/log"
    exit 1
}
# The log as one line, for CMake breaks its messages where it likes.
logged() { tr -s ' \n' ' ' <"$tmp/log" | grep -q -F -e "$1"; }

# refused NAME WHY: it is passed over, and WHY is said; then the pinned one is asked for. Twice: the answer is kept.
refused() {
    for time in first second; do
        ! configure "$1" "$tmp/empty" || fail "$1: taken, the $time time"
        logged "$tmp/$1/lib (version" && logged "is passed over" || fail "$1: not passed over, the $time time"
        logged "$2" || fail "$1: the reason does not have '$2', the $time time"
        logged "The pinned one is taken instead" || fail "$1: nothing is said of the pinned one"
    done
    echo "llama_check: $1: passed over, because of $2"
}

package same
configure same "$tmp/empty" || fail "same: not taken"
logged "libllama: $tmp/same/lib" || fail "same: not taken"
echo "llama_check: the package as it is: taken"

package older # a function that is not there yet
sed -i.before 's/llama_sampler_init_min_p/llama_sampler_init_other/' "$tmp/older/include/llama.h"
refused older llama_sampler_init_min_p

package newer # another argument
sed -i.before 's/ggml_get_type_traits(enum ggml_type type)/ggml_get_type_traits(enum ggml_type type, int more)/' "$tmp/newer/include/ggml.h"
refused newer ggml_get_type_traits

package loaded # the CPU backend as a plug-in
sed -i.before 's/GGML_BACKEND_DL "OFF"/GGML_BACKEND_DL "ON"/' "$tmp/loaded/lib/cmake/ggml/ggml-config.cmake"
refused loaded "at run time"

# The package is mended: the answer is asked for again.
mv "$tmp/older/include/llama.h.before" "$tmp/older/include/llama.h"
touch -t 200102030000 "$tmp/older/include/llama.h"
configure older "$tmp/empty" && logged "libllama: $tmp/older/lib" || fail "older: not taken after it was mended"
echo "llama_check: a package that was mended is taken"

if compgen -G "$cache/llama-install-*/stamp" >/dev/null; then
    configure newer "$cache" || fail "newer: no pinned one instead"
    ! logged "libllama: $tmp" && logged "libllama: $cache" || fail "newer: not the pinned one"
    echo "llama_check: the pinned one takes the place of one that is passed over"
fi
