#!/usr/bin/env bash
# What `cmake --install` leaves behind is usable: a small program is built against it with pkg-config, with CMake's
# find_package, and with pkg-config --static, and run; others on the engine and on the store, where these are built.
# The installed command runs its own helper, wherever the tree was put, and none that others could have written.
# usage: install.sh BUILD_DIR CC CMAKE_GENERATOR [engine|store|cuda|cli|server]..     what was built besides libquire
set -euo pipefail
build=$1 cc=$2 generator=$3
parts=" ${*:4} "
tmp=$(cd "$(mktemp -d)" && pwd -P) # without links, as the program names files
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
    [[ $parts = *" $name "* ]] || return 0
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

[[ $parts = *" cli "* ]] || exit 0
"$prefix/bin/quire" version >/dev/null
[ -s "$prefix/share/man/man1/quire.1" ] || { echo "install: no man page"; exit 1; }
echo "install: the installed command runs, and has man pages"
unit=$prefix/lib/systemd/system/quire.service
if [[ $parts = *" server "* && $(uname -s) = Linux ]]; then
    grep -q "^ExecStart=\"$prefix/bin/quire\" " "$unit" || { echo "install: the service runs another program"; grep Exec "$unit"; exit 1; }
    env DESTDIR="$tmp/staged" cmake --install "$build" --prefix /usr >/dev/null
    grep -q "^ExecStart=\"/usr/bin/quire\" " "$tmp/staged/usr/lib/systemd/system/quire.service"
    echo "install: the service runs the installed command, also from a staged tree"
fi
[[ $parts = *" engine "* ]] || exit 0 # a program without the engine has no helper

# A model by name: the helper finds the file in the cache and needs no network. It is not a model, which the program says
# with the path that the helper printed. That helper is the installed one: the test marks it with a name of its own.
export QUIRE_CACHE=$tmp/cache
mkdir -p "$QUIRE_CACHE/models"
echo "no model" >"$QUIRE_CACHE/models/smollm2.gguf"
# The note that it is the file of the pin, which is believed if it is newer.
sed -n '/^smollm2)/,/;;/s/^ *sha256=//p' tools/fetch-model >"$QUIRE_CACHE/models/smollm2.gguf.sha256"
touch -t 202001010000 "$QUIRE_CACHE/models/smollm2.gguf"
echo "no model" >"$QUIRE_CACHE/models/marked.gguf"

# said WHAT PROGRAM TEXT: the program, asked for a model by name, fails and says TEXT.
said() {
    local got
    if got=$("$2" run -m smollm2 -p x -n 1 2>&1) || [[ $got != *"$3"* ]]; then
        echo "install: $1: printed '$got', not '$3'"
        exit 1
    fi
    echo "install: $1"
}
helper_of() { find "$1" -name fetch-model; }
mark() { sed -i.before 's/^echo "$file"$/echo "${file%\/*}\/marked.gguf"/' "$1" && rm "$1.before"; }

said "the program in the build tree finds a model by name" "$build/bin/quire" "$QUIRE_CACHE/models/smollm2.gguf"
said "so does the installed one" "$prefix/bin/quire" "$QUIRE_CACHE/models/smollm2.gguf"
mark "$(helper_of "$prefix")"
said "with the helper that was installed" "$prefix/bin/quire" "$QUIRE_CACHE/models/marked.gguf"
mv "$prefix" "$tmp/moved"
prefix=$tmp/moved
said "also when the tree has moved" "$prefix/bin/quire" "$QUIRE_CACHE/models/marked.gguf"
ln -s "$prefix/bin/quire" "$tmp/link"
said "also through a link" "$tmp/link" "$QUIRE_CACHE/models/marked.gguf"

(umask 002 && DESTDIR=$tmp/stage cmake --install "$build" --prefix /opt/quire >/dev/null)
mark "$(helper_of "$tmp/stage")"
said "staged in DESTDIR, with a umask of 002" "$tmp/stage/opt/quire/bin/quire" "$QUIRE_CACHE/models/marked.gguf"

# Owners need root to be changed; modes are what can be tried here.
helper=$(helper_of "$prefix")
for where in "$helper" "$(dirname "$helper")" "$(dirname "$(dirname "$helper")")"; do
    for mode in o+w g+w; do
        chmod $mode "$where"
        said "no helper is run if $mode is set for ${where#"$prefix"/}" "$prefix/bin/quire" "'$where' is writable by"
        chmod go-w "$where"
    done
done
chmod o+w "$prefix"
said "nor below a directory that everybody may write to" "$prefix/bin/quire" "'$prefix' is writable by every user"
chmod o-w "$prefix"
said "and it is run again when these are repaired" "$prefix/bin/quire" "$QUIRE_CACHE/models/marked.gguf"
if [ "$(id -u)" = 0 ]; then
    chown 12345 "$helper"
    said "a helper of another user is not run" "$prefix/bin/quire" "'$helper' belongs to another user"
fi
rm "$helper"
said "a program without its helper says so" "$prefix/bin/quire" "is missing; was the program copied without it?"
