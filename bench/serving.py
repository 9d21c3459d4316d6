"""Servers for benches: started, asked over HTTP, stopped."""

import asyncio
import contextlib
import json
import socket
import subprocess
import time
import urllib.request

from programs import fail


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def serving(command, port):
    """The server, once /health says that it is ready."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 300
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
                    if reply.status == 200:
                        break
            except OSError:
                pass
            if process.poll() is not None or time.monotonic() > until:
                fail(f"{command[0]} did not start")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait()


async def complete(port, prompt, gen):
    """Seconds to the first token and to the end, and the usage that the server reports. prompt: a text or tokens."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": prompt, "max_tokens": gen, "temperature": 0, "stream": True, "ignore_eos": True,
                       "stream_options": {"include_usage": True}}).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                 b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    start, first, usage = time.monotonic(), None, {}
    status = int((await reader.readline()).split()[1])
    if status != 200:
        fail(f"status {status}: {(await reader.read())[:500]}")
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if first is None and any(choice.get("text") for choice in chunk.get("choices", [])):
            first = time.monotonic() - start
        usage = chunk.get("usage") or usage
    writer.close()
    return first or time.monotonic() - start, time.monotonic() - start, usage


def metric(port, name):
    """The sum of a metric over all its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    values = [float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name]
    if not values:
        fail(f"the server has no metric {name}")
    return sum(values)
