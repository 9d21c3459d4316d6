#!/usr/bin/env bash
# ggml's AMX products, computed in plain C (tests/engine/emulated_amx.h), on an x86-64 machine with AVX-512: that they are
# right, and that a row's bits do not depend on how many rows a product has.
# usage: amx.sh CC CXX BUILD_DIR. No AVX-512 here: skipped (77).
set -euo pipefail
cd "$(dirname "$0")/../.."
cc=$1 cxx=$2 build=$3/amx
cache=${QUIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quire}
if ! "$cc" -march=native -dM -E - </dev/null 2>/dev/null | grep -q '__AVX512BW__'; then
    echo "amx: this processor has no AVX-512"
    exit 77
fi
flags="-march=native -w -include \"$PWD/tests/engine/emulated_amx.h\""
cmake -S "$cache/llama.cpp/ggml" -B "$build" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_BLAS=OFF -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" >/dev/null
cmake --build "$build" -j "$(getconf _NPROCESSORS_ONLN)" --target ggml >"$build/log" || { tail -n 30 "$build/log"; exit 1; }
"$cc" -O2 -I"$cache/llama.cpp/ggml/include" -c tools/llama_smoke.c -o "$build/smoke.o"
"$cxx" "$build/smoke.o" "$build"/src/libggml.a "$build"/src/libggml-cpu.a "$build"/src/libggml-base.a -lpthread -ldl -o "$build/smoke"
"$build/smoke" -v
"$build/smoke" --rows 2>&1 | tee "$build/rows"
grep -q '^ *AMX ' "$build/rows" || { echo "amx: no AMX product was made"; exit 1; }
