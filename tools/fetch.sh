# Sourced, after lock.sh, by scripts that fetch into $cache: a file is what its pinned SHA-256 says, or it is not used.

sum() { if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1; }
# A python with pip. That of the environment has none if its set-up was stopped, or if the system's Python is another by now.
a_python() {
    local own=$cache/venv/bin/python
    if "$own" -m pip --version >/dev/null 2>&1; then "$own" "$@"; else python3 "$@"; fi
}

# fetched FILE SHA256: the file is there, and is the one of the pin. Its hash is computed once, and noted in FILE.sha256.
fetched() {
    [ -e "$1" ] || return 1
    [ "$(cat "$1.sha256" 2>/dev/null)" != "$2" ] || [ ! "$1.sha256" -nt "$1" ] || return 0
    [ "$(sum "$1")" = "$2" ] || return 1
    note_sum "$1" "$2"
}
note_sum() { { echo "$2" >"$1.sha256"; } 2>/dev/null || true; } # some caches can only be read

# download DIR REQUIREMENTS [PIP OPTION..]: Python packages as files of a new DIR, which is gone when the script ends. pip
# checks their hashes before it opens them.
download() {
    download_dir=$1
    rm -rf "$download_dir" # of a script that was killed
    trap 'rm -rf "$download_dir"' EXIT
    mkdir -p "$download_dir"
    a_python -m pip download -q --disable-pip-version-check --no-deps --require-hashes -d "$download_dir" "${@:3}" \
        -r <(echo "$2") >&2
}

# keep NEW FILE SHA256: NEW becomes FILE, whole or not at all.
keep() {
    if [ "$(sum "$1")" != "$3" ]; then
        say "what was downloaded is not the ${2##*/} expected"
        exit 1
    fi
    mv "$1" "$2"
    note_sum "$2" "$3"
}
