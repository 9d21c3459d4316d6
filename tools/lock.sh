# Sourced: lock_cache NAME waits until no other process holds $cache/NAME.lock, and holds it until this one ends.
lock_cache() {
    local held=0
    mkdir -p "$cache"
    exec 9>"$cache/$1.lock"
    take_lock -n || held=$?
    if [ "$held" = 75 ]; then
        say "another process is at work on $1: waiting for it"
        held=0
        take_lock || held=$?
    fi
    [ "$held" = 0 ] || say "the file system of $cache has no locks: do not run this twice at the same time"
}

take_lock() { # -n: returns 75 at once if somebody holds it. perl where flock(1) is missing (macOS)
    if command -v flock >/dev/null; then
        flock -E 75 "$@" 9 2>/dev/null
    else
        perl -e 'use Fcntl ":flock"; use Errno "EWOULDBLOCK"; open(F, ">&=9") or die;
            flock(F, LOCK_EX | (@ARGV ? LOCK_NB : 0)) or exit($! == EWOULDBLOCK ? 75 : 1)' -- "$@"
    fi
}
