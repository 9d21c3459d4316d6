#!/usr/bin/env bash
# The bytes of a sealed page must not depend on compiler, optimisation or processor: builds the library together with
# pages_digest.c in several ways, runs each, and compares what they print.
# usage: pages.sh [--cross]     --cross: this machine's build beside the other processor's, which an emulator runs
# A variant whose tools are missing is left out with a message, or fails the test when QUIRE_REQUIRE_ALL=1.
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

shopt -s nullglob
sources=("$PWD"/src/{base,codec,kern,kern/ref,page,seq,batch,attn,pool,file}/*.c)
# A copy, so that a cross compiler does not find the rest of this machine's headers.
xxhash=$(echo '#include <xxhash.h>' | cc -M -E - | grep -om1 '[^ ]*/xxhash\.h')
mkdir "$tmp/include" && cp "$xxhash" "$tmp/include/"
flags=(-std=c11 -ffp-contract=off -I"$PWD/include" -I"$PWD/src" -isystem "$tmp/include" -DQUIRE_BUILD -DQUIRE_PORTABLE -D_POSIX_C_SOURCE=200809L -pthread)

case $(uname -m) in # the cross build is for the other processor
x86_64 | amd64) other=aarch64 ;;
*) other=x86_64 ;;
esac
# Debian's static libm for cross builds is a linker script with wrong paths: name the archive behind it.
other_libm=(/usr/$other-linux-gnu/lib/libm-*.a)
[ ${#other_libm[@]} -gt 0 ] || other_libm=(-lm)

compared=() missing=() first=
# variant NAME RUNNER CC OPTIONS MORE...: builds and runs one variant; RUNNER is empty or an emulator,
# OPTIONS is one word, MORE is for the program alone. The library is compiled once for each CC and
# OPTIONS.
variant() {
    local name=$1 runner=$2 cc=$3 options=$4 tool
    shift 4
    for tool in $cc $runner; do
        if ! command -v "$tool" >/dev/null; then
            echo "pages: left out $name: $tool is not installed"
            missing+=("$name")
            return
        fi
    done
    local objects="$tmp/objects-$cc${options// /}"
    if [ ! -d "$objects" ]; then
        mkdir "$objects"
        (cd "$objects" && "$cc" "${flags[@]}" $options -c "${sources[@]}")
    fi
    "$cc" "${flags[@]}" $options tests/scripts/pages_digest.c "$objects"/*.o "$@" -o "$tmp/digest"
    $runner "$tmp/digest" >"$tmp/$name"
    [ -s "$tmp/$name" ] || { echo "pages: $name printed nothing"; exit 1; }
    first=${first:-$name}
    if ! diff "$tmp/$first" "$tmp/$name" >"$tmp/diff"; then
        echo "pages: $first (<) and $name (>) made different pages:"
        head -n 20 "$tmp/diff"
        exit 1
    fi
    compared+=("$name")
}

# The row kernels of both processors, without the hardware's fp16, which test_seal compares.
neon=(-DQUIRE_DIGEST_ROWS=quire__rows_neon src/kern/neon/neon_rows.c)
avx2=(-mavx2 -mfma -DQUIRE_DIGEST_ROWS=quire__rows_avx2 src/kern/x86/avx2_rows.c)
[ $other = x86_64 ] && own=("${neon[@]}") others=("${avx2[@]}") || own=("${avx2[@]}") others=("${neon[@]}")
[ $other = x86_64 ] && own_arch="" others_arch=" -mavx2 -mfma" || own_arch=" -mavx2 -mfma" others_arch=""

variant gcc-O3 "" gcc -O3 -lm
if [ "${1:-}" = --cross ]; then
    export QEMU_CPU=max
    variant "$other-O3" "qemu-$other" "$other-linux-gnu-gcc" -O3 -static "${other_libm[@]}"
    variant "$other-vectors" "qemu-$other" "$other-linux-gnu-gcc" "-O3$others_arch" -static "${others[@]}" "${other_libm[@]}"
else
    # Either compiler, either optimisation, vectors. Both of everything only in `make test-all`, and
    # there the whole library is compiled for the vectors' instructions: test_seal compares the vectors of the compiler
    # that the library is built with, too.
    full=$([ "${QUIRE_TEST_SWEEP:-}" != full ] || echo full)
    variant gcc-O0 "" gcc -O0 -lm
    [ -z "$full" ] || variant clang-O0 "" clang -O0 -lm
    variant clang-O3 "" clang -O3 -lm
    if [ $other = x86_64 ] || grep -qw avx2 /proc/cpuinfo; then
        [ -z "$full" ] || variant gcc-vectors "" gcc "-O3$own_arch" "${own[@]}" -lm
        variant clang-vectors "" clang "-O3${full:+$own_arch}" "${own[@]}" -lm
    fi
fi

echo "pages: the same in ${#compared[@]} variants: ${compared[*]-}"
if [ ${#missing[@]} -gt 0 ] && [ "${QUIRE_REQUIRE_ALL:-0}" = 1 ]; then
    echo "pages: QUIRE_REQUIRE_ALL=1, but these are missing: ${missing[*]} (run tools/setup test)"
    exit 1
fi
[ ${#compared[@]} -ge 2 ] || exit 77 # nothing to compare with: skipped
echo "pages: $(wc -l <"$tmp/$first") digests compared"
