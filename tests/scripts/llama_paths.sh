#!/usr/bin/env bash
# The three ways to a libllama (cmake/llama.cmake): an installed one, a source tree, and the pinned one; a change of mind in
# one build directory; and what is said where there is none. The installed one is that of the build under test, the
# source tree a toy of a few lines, since the real one takes minutes; a program is linked and run each time.
# usage: llama_paths.sh CC CXX CMAKE_GENERATOR LLAMA_LIB_DIR
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cc=$1 cxx=$2 generator=$3 installed=$4
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cache=${QUIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quire}

mkdir -p "$tmp/use" "$tmp/toy/include" "$tmp/toy/src" "$tmp/empty"
cat >"$tmp/use/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.21)
project(use C)
find_package(Threads REQUIRED)
include($root/cmake/llama.cmake)
add_executable(use main.c)
target_link_libraries(use llama Threads::Threads m)
CMAKE
cat >"$tmp/use/main.c" <<'C'
#include <llama.h>
#include <stdio.h>
int main(void) { return puts(llama_print_system_info()) < 0; }
C

# A tree that looks to CMake like llama.cpp and says that it is a toy.
echo 'const char *llama_print_system_info(void);' >"$tmp/toy/include/llama.h"
cat >"$tmp/toy/src/llama-model.cpp" <<'CPP'
extern "C" const char *llama_print_system_info(void);
const char *llama_print_system_info(void) { return "toy"; }
CPP
cat >"$tmp/toy/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.21)
project(llama CXX)
add_library(llama src/llama-model.cpp)
if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/ggml) # the stubs below
    add_library(ggml-cpu src/llama-model.cpp)
endif()
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/built-for
    CONTENT "ggml [$<TARGET_PROPERTY:ggml-cpu,COMPILE_OPTIONS>], llama [$<TARGET_PROPERTY:llama,COMPILE_OPTIONS>], ${GGML_NATIVE}, ${GGML_AVX2}")
install(FILES ${CMAKE_BINARY_DIR}/built-for DESTINATION lib)
install(TARGETS llama ARCHIVE DESTINATION lib)
install(FILES include/llama.h DESTINATION include)
file(WRITE ${CMAKE_BINARY_DIR}/llama-config.cmake [[
get_filename_component(prefix ${CMAKE_CURRENT_LIST_DIR}/../../.. ABSOLUTE)
set(LLAMA_LIB_DIR ${prefix}/lib)
find_library(llama_LIBRARY llama REQUIRED HINTS ${LLAMA_LIB_DIR})
add_library(llama UNKNOWN IMPORTED)
set_target_properties(llama PROPERTIES IMPORTED_LOCATION ${llama_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${prefix}/include)
add_library(ggml::ggml-cpu INTERFACE IMPORTED)
]])
install(FILES ${CMAKE_BINARY_DIR}/llama-config.cmake DESTINATION lib/cmake/llama)
CMAKE

configure() { # DIR CACHE OPTION...
    local dir=$tmp/$1 cached=$2
    shift 2
    QUIRE_CACHE=$cached cmake -S "$tmp/use" -B "$dir" -G "$generator" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" "$@" \
        >"$tmp/log" 2>&1
}
# check WHAT DIR CACHE WANTED OPTION...: the program prints WANTED (a pattern).
check() {
    local what=$1 dir=$2 cached=$3 wanted=$4 got
    shift 4
    configure "$dir" "$cached" "$@" && cmake --build "$tmp/$dir" >>"$tmp/log" 2>&1 || { tail -n 20 "$tmp/log"; exit 1; }
    got=$("$tmp/$dir/use")
    [[ $got =~ $wanted ]] || { echo "llama_paths: $what: printed '$got', not '$wanted'"; exit 1; }
    echo "llama_paths: $what: $got"
}

real='CPU : '
check "installed" one "$tmp/empty" "$real" -DCMAKE_PREFIX_PATH="$(dirname "$installed")" # an empty cache: nothing was built
check "source tree" two "$tmp/empty" '^toy$' -DQUIRE_LLAMA_SOURCE="$tmp/toy"
check "the installed one is left for a source tree" one "$tmp/empty" '^toy$' -DQUIRE_LLAMA_SOURCE="$tmp/toy"
if compgen -G "$cache/llama-install-*/stamp" >/dev/null; then
    check "pinned" three "$cache" "$real" -DQUIRE_LLAMA_INSTALLED=OFF
    check "the source tree is left for the pinned one" two "$cache" "$real" -DQUIRE_LLAMA_SOURCE= -DQUIRE_LLAMA_INSTALLED=OFF
fi

if configure four "$tmp/empty" -DQUIRE_LLAMA_SOURCE="$tmp/use"; then
    echo "llama_paths: a folder without llama.cpp was accepted"
    exit 1
fi
grep -q "$tmp/use is not a llama.cpp tree" "$tmp/log" || { tail -n 20 "$tmp/log"; exit 1; }
echo "llama_paths: a folder that is no tree is refused by name"

# Two builds at once: one builds, the other waits for it and takes what it made.
export CC=$cc CXX=$cxx
QUIRE_CACHE=$tmp/race "$root/tools/build-llama" "$tmp/toy" >"$tmp/first" 2>"$tmp/first.log" &
QUIRE_CACHE=$tmp/race "$root/tools/build-llama" "$tmp/toy" >"$tmp/second" 2>"$tmp/second.log"
wait
n=$(cat "$tmp/first.log" "$tmp/second.log" | grep -c 'building')
if [ "$n" != 1 ] || [ ! -e "$(cat "$tmp/first")/stamp" ] || ! cmp -s "$tmp/first" "$tmp/second"; then
    cat "$tmp/first.log" "$tmp/second.log"
    echo "llama_paths: two builds at once did not make one"
    exit 1
fi
echo "llama_paths: two builds at once make one"

# Compilers of two words, a relative cache, and a staged install of Quire around it.
words=$(cd "$tmp" && CC="env $cc" CXX="env $cxx" DESTDIR=$tmp/stage QUIRE_CACHE=words "$root/tools/build-llama" "$tmp/toy" 2>"$tmp/log") ||
    { cat "$tmp/log"; exit 1; }
if [ ! -e "$words/stamp" ] || [ ! -e "$tmp/words" ] || [ -e "$tmp/stage" ]; then
    echo "llama_paths: $words is not in the cache, or something is in DESTDIR"
    exit 1
fi
echo "llama_paths: compilers of two words, a relative cache, a staged install"

# Another processor, which is what the compiler says it is: a build of its own, beside the first.
printf '#!/bin/sh\n"%s" "$@" || exit $?\ncase "$*" in *native*) echo "#define __OTHER_PROCESSOR__ 1" ;; esac\n' "$cc" >"$tmp/other-cc"
chmod +x "$tmp/other-cc"
other=$(CC=$tmp/other-cc QUIRE_CACHE=$tmp/race "$root/tools/build-llama" "$tmp/toy" 2>"$tmp/log") || { cat "$tmp/log"; exit 1; }
if [ "$other" = "$(cat "$tmp/first")" ] || [ ! -e "$(cat "$tmp/first")/stamp" ]; then
    echo "llama_paths: a build for one processor was taken for another"
    exit 1
fi
echo "llama_paths: another processor has a build of its own"

# Named processors, for a package: also a build of its own, whose arithmetic is for these, without what ggml takes for granted.
case $(uname -m) in
x86_64 | amd64) march=x86-64-v2 ;;
*) march=armv8.1-a ;;
esac
named=$(QUIRE_CACHE=$tmp/race "$root/tools/build-llama" --for $march "$tmp/toy" 2>"$tmp/log") || { cat "$tmp/log"; exit 1; }
if [ "$named" = "$(cat "$tmp/first")" ] || [ "$(cat "$named/lib/built-for")" != "ggml [-march=$march], llama [], OFF, OFF" ]; then
    cat "$named/lib/built-for"
    echo "llama_paths: a build for $march is not for $march"
    exit 1
fi
check "named processors" two "$tmp/race" '^toy$' -DQUIRE_LLAMA_SOURCE="$tmp/toy" -DQUIRE_LLAMA_INSTALLED=ON -DQUIRE_LLAMA_MARCH=$march
grep -q "libllama: $named/lib" "$tmp/log" || { cat "$tmp/log"; exit 1; }
if QUIRE_CACHE=$tmp/race "$root/tools/build-llama" --for nonsense "$tmp/toy" 2>"$tmp/log" || ! grep -q 'does not know -march=nonsense' "$tmp/log"; then
    cat "$tmp/log"
    echo "llama_paths: a processor that the compiler does not know was accepted"
    exit 1
fi
echo "llama_paths: a build for $march, and none for nonsense"

# What was built is tried out. This tree's ggml is made of stubs for what the trial calls, and before it begins says which
# weights do not run: BROKEN, unless the tree is built with WITHOUT.
mkdir -p "$tmp/stubs/ggml/include" "$tmp/stubs/ggml/src"
cp -R "$tmp/toy/." "$tmp/stubs"
cp "$(dirname "$installed")"/include/ggml*.h "$(dirname "$installed")"/include/gguf.h "$tmp/stubs/ggml/include/"
"$cc" -I"$tmp/stubs/ggml/include" -c "$root/tools/llama_smoke.c" -o "$tmp/smoke.o"
{
    nm -u "$tmp/smoke.o" | sed -n 's/.* _*\(ggml_[a-z0-9_]*\).*/void \1(void) {}/p'
    echo '#include <stdio.h>'
    echo '#include <stdlib.h>'
    echo '__attribute__((constructor)) static void say(void) { exit(BROKEN[0] && puts(BROKEN) > 0); }'
} >"$tmp/stubs/ggml/src/stubs.c"
cat >>"$tmp/stubs/CMakeLists.txt" <<'CMAKE'
enable_language(C)
add_subdirectory(ggml)
CMAKE
echo 'add_subdirectory(src)' >"$tmp/stubs/ggml/CMakeLists.txt"
stubs() { # BROKEN WITHOUT
    cat >"$tmp/stubs/ggml/src/CMakeLists.txt" <<CMAKE
set(broken "$1")
if(DEFINED $2 AND NOT $2)
    set(broken "")
endif()
foreach(name ggml ggml-cpu ggml-base)
    add_library(\${name} STATIC stubs.c)
    target_compile_definitions(\${name} PRIVATE "BROKEN=\"\${broken}\"")
endforeach()
CMAKE
    QUIRE_CACHE=$tmp/stubs-cache-$1 "$root/tools/build-llama" "$tmp/stubs" >"$tmp/out" 2>"$tmp/log"
}
if ! stubs CPU_REPACK GGML_CPU_REPACK || ! grep -q 'rearranged weights do not run here: built without them' "$tmp/log" ||
    [ ! -e "$(cat "$tmp/out")/stamp" ]; then
    cat "$tmp/log"
    echo "llama_paths: weights that do not run were not left out"
    exit 1
fi
echo "llama_paths: rearranged weights that do not run are left out"
if stubs CPU NOTHING_HELPS || ! grep -q 'does not run on this machine' "$tmp/log"; then
    cat "$tmp/log"
    echo "llama_paths: a build that does not run was accepted"
    exit 1
fi
echo "llama_paths: a build that does not run is refused"
