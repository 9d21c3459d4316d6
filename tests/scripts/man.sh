#!/usr/bin/env bash
# Help fits 80 columns, and the man pages are complete: `quire help --man` writes a page for every command, with every
# option and example of its --help, and roff takes it without a warning.
# usage: man.sh QUIRE
set -euo pipefail
quire=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
fail() { echo "man: $*"; bad=1; }

# commands [GROUP]: the names in the list of commands that --help prints
commands() { "$quire" "$@" --help | sed -n '/^commands:/,/^$/ s/^  \([a-z]*\) .*/\1/p'; }

# check PAGE WORD...: `quire WORD... --help` and PAGE.1 say the same
check() {
    local page=$1 help text word
    shift
    help=$("$quire" "$@" --help)
    if long=$(grep -E '^.{81,}' <<<"$help"); then fail "quire $*: wider than 80 columns: $long"; fi
    [ -s "$tmp/man/$page.1" ] || { fail "no page $page.1"; return; }
    text=$(sed 's/\\-/-/g; s/\\(aq/'\''/g; s/\\e/\\/g; s/\\f[BIR]//g; s/^\\&//' "$tmp/man/$page.1")
    for section in NAME SYNOPSIS "EXIT STATUS"; do
        grep -qx ".SH $section" <<<"$text" || fail "$page.1 has no section $section"
    done
    while read -r option; do
        grep -qE -- "(^|, )--$option( |$)" <<<"$text" || fail "$page.1 does not have --$option"
    done < <(sed -nE 's/^  (-., |    )--([a-z0-9-]+).*/\2/p' <<<"$help")
    while read -r example; do
        grep -qxF -- "$example" <<<"$text" || fail "$page.1 does not have the example: $example"
    done < <(sed -n '/^examples:/,$ s/^  //p' <<<"$help")
    if command -v groff >/dev/null; then
        warned=$(groff -man -Tutf8 -ww -rLL=200n -z "$tmp/man/$page.1" 2>&1) || true
        [ -z "$warned" ] || fail "groff: $warned"
    fi
    if command -v mandoc >/dev/null; then
        warned=$(mandoc -T lint -W error "$tmp/man/$page.1" 2>&1) || true
        [ -z "$warned" ] || fail "mandoc: $warned"
    fi
}

"$quire" help --man "$tmp/man" >"$tmp/out"
[ ! -s "$tmp/out" ] || fail "help --man printed something on stdout"
check quire
n=1
for command in $(commands); do
    [ "$command" != help ] || continue
    check "quire-$command" "$command"
    n=$((n + 1))
    for sub in $(commands "$command"); do
        check "quire-$command-$sub" "$command" "$sub"
        n=$((n + 1))
    done
done
pages=$(find "$tmp/man" -name '*.1' | wc -l)
[ "$n" = "$pages" ] || fail "$pages pages for $n commands"
[ "$n" -ge 10 ] || fail "only $n commands were found"
if "$quire" help --man "$tmp/no/such" 2>"$tmp/err" || ! grep -q "cannot write '$tmp/no/such'" "$tmp/err"; then
    fail "help --man into a missing directory does not say so: $(cat "$tmp/err")"
fi
[ "$bad" = 0 ] || exit 1
echo "man: $pages pages"
