#!/usr/bin/env bash
# packaging/quire.service.in is a unit that systemd understands, and one that it calls well protected.
# usage: service.sh     skipped where there is no systemd-analyze
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v systemd-analyze >/dev/null || { echo "service: no systemd-analyze here"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/bin"
ln -s /bin/true "$tmp/bin/quire"
sed "s|@BINDIR@|$tmp/bin|" packaging/quire.service.in >"$tmp/quire.service"

# Unknown settings are only complained about.
said=$(systemd-analyze verify --man=no "$tmp/quire.service" 2>&1) || { echo "$said"; exit 1; }
said=$(grep -F quire.service <<<"$said" || true)
[ -z "$said" ] || { echo "$said"; exit 1; }

# 0 is best, 100 worst; a service without any protection has 96.
systemd-analyze security --offline=true --threshold=20 "$tmp/quire.service" >"$tmp/report" || { cat "$tmp/report"; exit 1; }
tail -1 "$tmp/report"
