#!/usr/bin/env bash
# The shared library exports what its headers declare, and what src/ marks QUIRE_INTERNAL for the libraries above it;
# every global name of the static one starts with quire_.
# usage: symbols.sh libquire.so libquire.a HEADER...        -: there is no static one
set -euo pipefail
cd "$(dirname "$0")/../.."
shared=$1 static=$2
shift 2
bad=0

# Prints the defined global names of a library. Arguments go to nm.
names() { nm --defined-only --format=posix "$@" | awk 'NF > 1 { print $1 }' | sort -u; }

exported=$(names -D "$shared") # on their own lines: nm failing inside an `if` would be taken for nothing found
globals=quire_none
[ "$static" = - ] || globals=$(names -g "$static")
declared=$(sed -nE 's/^QUIRE_API [^(]*[ *](quire_[a-z0-9_]+)\(.*/\1/p' "${@/#/include/}" | sort -u)

internal=
if [ "$1" = quire.h ]; then
    internal=$(grep -rhoE '^QUIRE_INTERNAL [^(]*[ *]quire__[a-z0-9_]+\(' src | sed -E 's/.*(quire__[a-z0-9_]+)\(/\1/')
    declared=$(sort -u <<<"$declared"$'\n'"$internal")
fi

if private=$(comm -23 <(echo "$exported") <(sort -u <<<"$internal") | grep -vE '^quire_[^_]'); then
    echo "symbols: exported, but not quire_*:" $private
    bad=1
fi
if missing=$(comm -13 <(echo "$exported") <(echo "$declared") | grep .); then
    echo "symbols: declared in $*, but not exported:" $missing
    bad=1
fi
if surplus=$(comm -23 <(echo "$exported") <(echo "$declared") | grep .); then
    echo "symbols: exported, but not declared in $*:" $surplus
    bad=1
fi
if foreign=$(grep -v '^quire_' <<<"$globals"); then
    echo "symbols: global in the static library, but not quire_*:" $foreign
    bad=1
fi
echo "symbols: $(wc -l <<<"$exported") exported"
exit $bad
