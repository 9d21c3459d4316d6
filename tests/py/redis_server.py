"""A Redis server on loopback for tests, with the password hush."""

import os
import pathlib
import shutil
import socket
import subprocess
import time

import pytest


class Redis:
    """A server on a free port. kill() and start() take it away and bring it back, empty, on the same port."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        if not any(self.start(port) for port in range(18480, 18500)):
            raise AssertionError("no port is free")

    def start(self, port=None):
        """False: the port is taken."""
        self.port = port or self.port
        self.url = f"redis://127.0.0.1:{self.port}"
        log = self.directory / f"redis-{self.port}.log"
        log.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--requirepass", "hush",
             "--dir", str(self.directory), "--logfile", str(log)])
        while self.process.poll() is None:  # ended: what answers at this port is another server
            if log.exists() and "Ready to accept connections" in log.read_text():
                return True
            time.sleep(0.02)
        return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def ask(self, *words):
        """As redis-cli does."""
        with socket.create_connection(("127.0.0.1", self.port)) as link, link.makefile("rb") as replies:
            for command in (("AUTH", "hush"), words):
                parts = [w if isinstance(w, bytes) else str(w).encode() for w in command]
                link.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
                reply = read_reply(replies)
            return reply


@pytest.fixture
def redis(tmp_path):
    if not shutil.which("redis-server"):
        assert not os.environ.get("QUIRE_REQUIRE_ALL"), "redis-server is not installed"
        pytest.skip("redis-server is not installed")
    server = Redis(tmp_path)
    yield server
    server.kill()


def read_reply(replies):
    line = replies.readline()[:-2]
    kind, rest = line[:1], line[1:]
    if kind == b"$":
        return None if rest == b"-1" else replies.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [read_reply(replies) for _ in range(int(rest))]
    return int(rest) if kind == b":" else line
