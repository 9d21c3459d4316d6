#!/usr/bin/env bash
# What `cmake --install` leaves behind is usable: a small program is built against it with pkg-config, with CMake's
# find_package, and with pkg-config --static, and run; others on the engine and on the store, where these are built.
# usage: install.sh BUILD_DIR CC CMAKE_GENERATOR
set -euo pipefail
build=$1 cc=$2 generator=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
prefix=$tmp/prefix

env -u DESTDIR cmake --install "$build" --prefix "$prefix" >"$tmp/log" || { cat "$tmp/log"; exit 1; }
pc=$(find "$prefix" -name quire.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir quire)

mkdir "$tmp/use"
cat >"$tmp/use/main.c" <<'C'
#include <quire.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
    char header[32];
    snprintf(header, sizeof header, "%d.%d.%d", QUIRE_VERSION_MAJOR, QUIRE_VERSION_MINOR, QUIRE_VERSION_PATCH);
    printf("%s %s\n", quire_version(), quire_status_name(QUIRE_OK));
    return strcmp(header, quire_version()) != 0;
}
C
cat >"$tmp/use/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.21)
project(use C)
find_package(quire 0.1 REQUIRED)
add_executable(use_shared main.c)
target_link_libraries(use_shared quire::quire)
add_executable(use_static main.c)
target_link_libraries(use_static quire::quire_static)
CMAKE

# check HOW PROGRAM: the program runs and names the version that pkg-config names.
check() {
    local want got
    want="$(pkg-config --modversion quire) QUIRE_OK"
    got=$("$2") || { echo "install: $1: the header and the library differ in version"; exit 1; }
    [ "$got" = "$want" ] || { echo "install: $1: printed '$got', not '$want'"; exit 1; }
    echo "install: $1: $got"
}

"$cc" "$tmp/use/main.c" -o "$tmp/shared" $(pkg-config --cflags --libs quire) -Wl,-rpath,"$libdir"
check "pkg-config" "$tmp/shared"

{ cmake -S "$tmp/use" -B "$tmp/use/build" -G "$generator" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" &&
    cmake --build "$tmp/use/build"; } >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
check "find_package, quire::quire" "$tmp/use/build/use_shared"
check "find_package, quire::quire_static" "$tmp/use/build/use_static"

# A library that holds libquire: its header and quire.h, one thing to link. `call` is something in it that must fail.
# usage: part NAME TYPE CALL STATUS
part() {
    local name=$1 type=$2 call=$3 status=$4 dir=$tmp/$1
    [ -e "$prefix/include/quire_$name.h" ] || return 0
    mkdir "$dir"
    cat >"$dir/main.c" <<C
#include <quire_$name.h>
#include <stdio.h>
int main(void)
{
    $type *it; /* both headers, one library: its status, named by libquire */
    printf("%s %s\\n", quire_version(), quire_status_name($call));
    return 0;
}
C
    cat >"$dir/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.21)
project(use_$name C)
find_package(quire 0.1 REQUIRED)
add_executable(use_$name main.c)
target_link_libraries(use_$name quire::quire_$name)
CMAKE
    "$cc" "$dir/main.c" -o "$dir/use" $(pkg-config --cflags --libs "quire-$name") -Wl,-rpath,"$libdir"
    { cmake -S "$dir" -B "$dir/build" -G "$generator" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" &&
        cmake --build "$dir/build"; } >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
    for program in "$dir/use" "$dir/build/use_$name"; do
        got=$("$program")
        [ "$got" = "$(pkg-config --modversion "quire-$name") $status" ] || { echo "install: $name: printed '$got'"; exit 1; }
    done
    echo "install: quire-$name, with pkg-config and with quire::quire_$name: $got"
}
part engine quire_model 'quire_model_load(&it, "no such file", NULL)' QUIRE_E_IO
part cuda quire_cuda_decode_plan 'quire_cuda_decode_create(&it, NULL)' QUIRE_E_INVALID
part store quire_store 'quire_store_open(&it, "", NULL)' QUIRE_E_INVALID

find "$libdir" -name 'libquire.*' ! -name '*.a' -delete # so that -lquire can only mean the static library
"$cc" "$tmp/use/main.c" -o "$tmp/static" $(pkg-config --static --cflags --libs quire)
check "pkg-config --static" "$tmp/static"

if [ -e "$build/bin/quire" ]; then
    "$prefix/bin/quire" version >/dev/null
    echo "install: the installed command runs"
fi
