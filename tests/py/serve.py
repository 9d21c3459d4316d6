"""Starts `quire serve` on a free port, for tests that talk to it."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

PROGRAM = os.environ.get("QUIRE_PROGRAM", "")


class Server:
    def __init__(self, directory, model, *arguments, kv="k8v4", threads=1, before=(), key="", log=None):
        """before: words in front of the command, a wrapper that ends by becoming it. key: an API key.
        log: where it writes its log, if not to stderr."""
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.log_path = directory / "server.log"
        command = [*before, PROGRAM, "serve", "-m", model, "--kv", kv, "--port", 0, "-t", threads, "--swap-dir", directory,
                   *arguments]
        with open(self.log_path, "a") as output:
            self.process = subprocess.Popen([str(word) for word in command], stderr=output, stdout=output)
        if log:
            self.log_path = log
        self.url = self.wait_for(r"listens on (http://\S+)")

    def log(self):
        return self.log_path.read_text() if self.log_path.exists() else ""

    def wait_for(self, pattern, seconds=120):
        """The first group of the pattern, once the log has it."""
        until = time.monotonic() + seconds
        while not (found := re.search(pattern, self.log())):
            assert self.process.poll() is None and time.monotonic() < until, self.log()
            time.sleep(0.02)
        return found[1] if found.groups() else found[0]

    def get(self, path):
        request = urllib.request.Request(self.url + path, headers=self.headers)
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.read()

    def stats(self):
        return json.loads(self.get("/stats"))

    def post(self, path, body, timeout=300):
        """Status and JSON, of errors too."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **self.headers})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def wait_until(self, condition, seconds=120):
        """Until condition(stats) holds."""
        until = time.monotonic() + seconds
        while not condition(stats := self.stats()):
            assert time.monotonic() < until, stats
            time.sleep(0.02)
        return stats

    def metric(self, name):
        """The sum of a metric over all its labels."""
        lines = self.get("/metrics").decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def own_memory(self):
        """Bytes of this process in memory, without files that it maps: those of a store come and go."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(timeout=120)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
