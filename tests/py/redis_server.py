"""A Redis server on loopback for tests, with the password hush."""

import os
import shutil
import socket
import subprocess
import time

import pytest


@pytest.fixture
def redis(tmp_path):
    """A server on loopback, and a function that asks it something as redis-cli does."""
    if not shutil.which("redis-server"):
        assert not os.environ.get("QUIRE_REQUIRE_ALL"), "redis-server is not installed"
        pytest.skip("redis-server is not installed")
    for port in range(18480, 18500):
        log = tmp_path / f"redis-{port}.log"
        server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                                   "--requirepass", "hush", "--dir", str(tmp_path), "--logfile", str(log)])

        def ask(*words):
            with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rb") as replies:
                for command in (("AUTH", "hush"), words):
                    parts = [w if isinstance(w, bytes) else str(w).encode() for w in command]
                    link.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
                    reply = read_reply(replies)
                return reply

        while server.poll() is None:  # ended: the port is taken, and what answers there is another server
            if not log.exists() or "Ready to accept connections" not in log.read_text():
                time.sleep(0.02)
                continue
            yield f"redis://127.0.0.1:{port}", ask
            server.kill()
            server.wait()
            return
    raise AssertionError("no port is free")


def read_reply(replies):
    line = replies.readline()[:-2]
    kind, rest = line[:1], line[1:]
    if kind == b"$":
        return None if rest == b"-1" else replies.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [read_reply(replies) for _ in range(int(rest))]
    return int(rest) if kind == b":" else line
