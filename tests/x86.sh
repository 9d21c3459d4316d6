#!/usr/bin/env bash
# On a machine that is not x86-64: builds the x86-64 library as a user would, AVX-512 included, and runs the kernel tests on
# what the emulator has, which is AVX2 (qemu-user knows no AVX-512; build/emulated runs that over SIMDe).
# usage: tests/x86.sh BUILD_DIR. Tools missing: skipped (77), or failed when QUIRE_REQUIRE_ALL=1.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1/x86

for tool in x86_64-linux-gnu-gcc qemu-x86_64; do
    if ! command -v "$tool" >/dev/null; then
        echo "x86: $tool is not installed (run tools/setup test)"
        [ "${QUIRE_REQUIRE_ALL:-0}" = 1 ] && exit 1
        exit 77
    fi
done

cmake -S . -B "$build" -DCMAKE_TOOLCHAIN_FILE=cmake/x86_64-linux-gnu.cmake -DCMAKE_BUILD_TYPE=Release \
    -DQUIRE_CLI=OFF -DQUIRE_ENGINE=OFF -DQUIRE_WERROR=ON >/dev/null
cmake --build "$build" -j "$(getconf _NPROCESSORS_ONLN)" \
    --target quire test_kernels integers_avx2 integers_avx512 >"$build/log" || { cat "$build/log"; exit 1; }
qemu-x86_64 -cpu max "$build/tests/integers_avx2"
qemu-x86_64 -cpu max "$build/tests/test_kernels" | tee "$build/log"
grep -q 'testing avx2$' "$build/log" || { echo "x86: AVX2 was not tested"; exit 1; }
