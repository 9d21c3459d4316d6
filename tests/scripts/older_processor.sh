#!/usr/bin/env bash
# A program whose ggml was compiled for this machine, on a processor that has less (emulated by qemu): loading a model fails
# with the name of what is missing, not by an illegal instruction.
# usage: older_processor.sh PROGRAM
set -euo pipefail
program=$1
case $(uname -m) in
x86_64 | amd64) older=(qemu-x86_64 -cpu Nehalem) ;;
*) older=(qemu-aarch64 -cpu cortex-a53) ;;
esac
if ! command -v "${older[0]}" >/dev/null; then
    echo "older_processor: ${older[0]} is not here"
    exit 77
fi
rc=0
said=$("${older[@]}" "$program" run -m /no-such-model.gguf -p hi 2>&1) || rc=$?
if grep -q "no-such-model" <<<"$said"; then
    echo "older_processor: this ggml needs nothing that ${older[2]} does not have"
    exit 77
fi
if [ "$rc" != 1 ] || ! grep -q "compiled for processors with .*, which this one does not have" <<<"$said"; then
    echo "older_processor: exit status $rc, and: $said"
    exit 1
fi
grep "compiled for" <<<"$said"
