#!/usr/bin/env bash
# Every public header compiles alone, and twice in a row, as C11 and as C++17.
# usage: headers.sh CC CXX        an empty CXX: no C++ compiler was found
set -euo pipefail
cd "$(dirname "$0")/../.."
cc=$1 cxx=$2
flags=(-Wall -Wextra -pedantic -Werror -fsyntax-only -Iinclude)

for header in include/*.h; do
    name=$(basename "$header")
    source=$(printf '#include "%s"\n#include "%s"\n' "$name" "$name")
    "$cc" -x c -std=c11 "${flags[@]}" - <<<"$source"
    echo "headers: $name is C11"
    if [ -n "$cxx" ]; then
        "$cxx" -x c++ -std=c++17 "${flags[@]}" - <<<"$source"
        echo "headers: $name is C++17"
    fi
done

if [ -z "$cxx" ]; then
    echo "headers: C++17 left out: no C++ compiler"
    [ "${QUIRE_REQUIRE_ALL:-0}" != 1 ]
fi
