"""The libraries that attention is measured beside: ggml, torch and mlx, whichever are here."""

import subprocess

from peer_ggml import Ggml, Missing, run
from programs import ROOT, cache_dir


class Sdpa:
    """torch or mlx, in a process of its own."""

    def __init__(self, library):
        self.library, self.python = library, cache_dir() / "venv/bin/python"
        if not self.python.exists():
            raise Missing("no Python environment: run tools/setup bench")
        try:
            self.version = self.ask().split()[0]
        except subprocess.CalledProcessError as error:
            reason = error.stderr.strip().splitlines()[-1]
            raise Missing(f"{reason} (make bench PEERS=all installs it)" if "No module" in reason else reason)

    def ask(self, threads=1, *works):
        return run(self.python, ROOT / "bench/peer_sdpa.py", self.library, threads, *works)

    def measure(self, work, kind, threads):
        return float(self.ask(threads, f"{work.shape},{work.ctx},{work.rows},{kind},{work.layers}").split()[1])


def find_peers(wanted):
    """-> {name: peer} of those that are here, {name: why} of the others. A peer's measure(work,
    type, threads) gives ms."""
    peers, missing = {}, {}
    for name, make in (("ggml", Ggml), ("torch", lambda: Sdpa("torch")), ("mlx", lambda: Sdpa("mlx"))):
        try:
            if name in wanted:
                peers[name] = make()
        except Missing as reason:
            missing[name] = str(reason)
    return peers, missing
