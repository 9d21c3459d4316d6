# Sourced: lock_cache NAME waits until no other process holds $cache/NAME.lock, and holds it until this one ends.
lock_cache() {
    mkdir -p "$cache"
    exec 9>"$cache/$1.lock"
    take_lock -n && return
    say "another process is at work on $1: waiting for it"
    take_lock
}

take_lock() { # -n: fails at once if somebody holds it. perl where flock(1) is missing (macOS)
    if command -v flock >/dev/null; then
        flock "$@" 9
    else
        perl -e 'use Fcntl ":flock"; open(F, ">&=9") or die; flock(F, LOCK_EX | (@ARGV ? LOCK_NB : 0)) or exit 1' -- "$@"
    fi
}
