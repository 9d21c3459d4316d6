"""`quire serve` with many clients at once, too little memory, and a store whose places fail."""

import asyncio
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time

import pytest

import engine_models as models
from conftest import full_sweep
from engine_vocab import sentence_piece
from redis_server import redis  # noqa: F401 (a fixture)
from serve import PROGRAM, Server
from small_disk import SmallDisk

pytestmark = pytest.mark.skipif(not PROGRAM, reason="built without the command line")

# These letters are one token each, and the text never ends by itself.
ENDLESS = "root ::= [bcdfghjkmnpqtvwxz] root"
WORDS = "the quick brown fox jumps over lazy dogs while rain falls on stone and night comes down".split()
PATIENT = [f"--{what}-timeout=3600" for what in ("header", "body", "idle")]  # for a machine that is busy with other things
NO_DISK = "not here: neither root nor a user namespace may mount a small disk"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return models.make(tmp_path_factory.mktemp("model") / "tiny.gguf", "llama", layers=1, context=8192,
                       more_keys=sentence_piece(chat_template="chatml"))


def make_prompt(seed):
    """100 to 6000 tokens, short prompts more often; one in three begins as others do. A letter is a token, a space has
    the three of its bytes in the vocabulary."""
    chosen = random.Random(seed)
    tokens = {0: 100, 1: 6000}.get(seed) or int(100 * 60 ** chosen.random())
    start = random.Random(seed % 4).choices(WORDS, k=250) if seed % 3 == 0 else []
    text = " ".join(start + chosen.choices(WORDS, k=1200))
    ends = itertools.accumulate(3 if letter == " " else 1 for letter in text)
    return text[:sum(end <= tokens for end in ends)]


def n_answer(seed):
    """Tokens of the answer; some are so long that a full cache has to swap them."""
    return 8 + seed % 40 + (250 if seed % 4 == 2 else 0)


async def complete(server, seed, key="none", leave_after=None, letters=6000, more_tokens=0):
    """Status and text of a streamed completion. leave_after: closes the connection after so many chunks."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = {"prompt": make_prompt(seed)[:letters], "max_tokens": n_answer(seed) + more_tokens, "temperature": 0.8,
            "seed": seed, "stream": True, "grammar": ENDLESS}
    text = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer %s\r\n"
                 b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (key.encode(), len(text)) + text)
    status = int((await reader.readline()).split()[1])
    parts = []
    while line := await reader.readline():
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        chunk = json.loads(line[6:])
        assert "error" not in chunk, chunk
        parts += [choice["text"] for choice in chunk["choices"]]
        if leave_after is not None and len(parts) > leave_after:
            break
    writer.close()
    return status, "".join(parts)


class Trouble:
    """Takes one place of the store away after the other, and gives it back once the server has noticed."""

    def __init__(self, server, redis, disk):
        self.server, self.rounds, self.memory = server, 0, []
        self.places = [(f"redis://127.0.0.1:{redis.port}", redis.kill, redis.start)]
        if disk.available:
            self.places.append((str(disk.directory), lambda: disk.fill(server.process), lambda: disk.empty(server.process)))

    def lines(self, place):
        """How often the log said that a place failed, and that it works again."""
        lines = [line for line in self.server.log().splitlines() if place in line]
        return sum("goes on without" in line for line in lines), sum(" again" in line for line in lines)

    async def wait_for_a_line(self, place, which, before):
        """The first time it must come. Later a store that is complete may have nothing more to write."""
        for _ in range(3000 if self.rounds == 0 else 50):
            if self.lines(place)[which] > before:
                return
            await asyncio.sleep(0.1)
        assert self.rounds > 0, f"nothing was said about {place}:\n{self.server.log()[-3000:]}"

    async def make(self, until):
        while self.rounds == 0 or time.monotonic() < until:
            for place, take, give in self.places:
                failed, worked = self.lines(place)
                take()
                await self.wait_for_a_line(place, 0, failed)
                give()
                await self.wait_for_a_line(place, 1, worked)
                await asyncio.sleep(1)
            self.rounds += 1
            self.memory.append(self.server.own_memory())


class Clients:
    def __init__(self, server, answers, keys):
        self.server, self.answers, self.keys = server, answers, keys
        self.wrong, self.served, self.left, self.is_over = [], 0, 0, False

    async def run_one(self, number):
        chosen = random.Random(number)
        while not self.is_over:
            seed, key = chosen.choice(list(self.answers)), chosen.choice(self.keys)
            leave = chosen.randint(0, 5) if chosen.random() < 0.2 else None
            answer = await complete(self.server, seed, key, leave)
            if leave is not None:
                self.left += 1
                continue
            self.served += 1
            if answer != self.answers[seed]:
                self.wrong.append((seed, answer, self.answers[seed]))

    async def run(self, n, seconds, trouble):
        async def end():
            until = time.monotonic() + seconds
            await trouble.make(until)
            await asyncio.sleep(until - time.monotonic())
            self.is_over = True

        ending = asyncio.create_task(end())
        clients = [asyncio.create_task(self.run_one(number)) for number in range(n)]
        await asyncio.gather(ending, *clients)


def least_bytes(model):
    """The smallest cache that the server accepts."""
    command = [PROGRAM, "serve", "-m", model, "--kv", "k8v4", "--port", "0", "-t", "1", "--kv-bytes", "1K"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return int(refused.stderr.split("at least ")[1].split()[0])


def test_many_clients(model, tmp_path, redis, monkeypatch):  # noqa: F811
    """64 clients, some of which leave, with keys whose pages are kept apart: there is always something to compute and
    to store. Meanwhile Redis is killed and started again, and the disk with the store and the swapped texts is full
    for a while. Every answer is that of an idle server without a store, and all pages are free in the end."""
    monkeypatch.setenv("QUIRE_REDIS_PASSWORD", "hush")
    seconds, seeds, disk_size = (600, 40, "400m") if full_sweep() else (12, 16, "100m")
    with Server(tmp_path / "alone", model, "--exact", "--parallel", 1, "--prefixes", 0) as alone:
        answers = {seed: asyncio.run(complete(alone, seed)) for seed in range(seeds)}
    assert all(status == 200 and len(text) == n_answer(seed) for seed, (status, text) in answers.items())

    keys = [f"key-{i}" for i in range(64)]
    (tmp_path / "keys").write_text("\n".join(keys))
    (tmp_path / "keys").chmod(0o600)
    disk = SmallDisk(tmp_path / "disk", disk_size)
    store = disk.directory / "store"
    with Server(tmp_path / "server", model, "--exact", "--parallel", 12, "--prefixes", 0, "--connections", 100, "--isolate",
                *PATIENT, "--api-keys", tmp_path / "keys", "--kv-bytes", least_bytes(model) + 1_000_000, "--swap-dir", disk.directory,
                "--store", f"mem:4M,{store},{redis.url}?timeout=500", before=disk.before, key=keys[0]) as server:
        asyncio.run(complete(server, 1, keys[0]))
        clients = Clients(server, answers, keys)
        trouble = Trouble(server, redis, disk)
        asyncio.run(clients.run(64, seconds, trouble))
        memory = trouble.memory
        assert not clients.wrong, clients.wrong[:3]
        assert clients.served + clients.left >= 64 and min(clients.served, clients.left) > 0
        stats = server.wait_until(lambda s: s["jobs"]["running"] == s["jobs"]["waiting"] == 0)
        cache = stats["caches"][0]
        assert cache["sequences"] == 0 and cache["tokens"] == 0
        assert cache["bytes"]["sealed"] == cache["bytes"]["open"] == 0
        assert stats["jobs"]["failed"] == 0
        memory.append(server.own_memory())
        print(f"{clients.served} answers, {clients.left} clients left, {stats['swaps']}, memory {memory}")
        # The first round fills buffers of 64 connections and jobs, and queues of the store.
        assert memory[-1] < memory[0] + 24 * 2**20, memory
        assert server.stop() == 0
    if not disk.available:
        pytest.skip(NO_DISK + "; everything but the full disk was tested")


@pytest.mark.parametrize("is_full", [False, True])
def test_a_full_cache_swaps_and_goes_on(is_full, model, tmp_path):
    """A pool of a few texts and 12 clients: the answers are the same, though some are swapped to disk on the way, or
    computed again because the disk is full."""
    disk = SmallDisk(tmp_path / "disk", "8k")
    if is_full and not disk.available:
        pytest.skip(NO_DISK)
    arguments = ["--exact", "--parallel", 12, "--prefixes", 2, *PATIENT]
    where = ["--swap-dir", disk.directory]
    with Server(tmp_path / "small", model, *arguments, "--kv-bytes", least_bytes(model) + 600_000, *where,
                before=disk.before if is_full else ()) as small, Server(tmp_path / "large", model, *arguments) as large:
        async def all_of(server):
            return await asyncio.gather(*(complete(server, seed, letters=200, more_tokens=400) for seed in range(24)))

        assert asyncio.run(all_of(small)) == asyncio.run(all_of(large))
        stats = small.stats()
        assert stats["swaps"]["out"] > 0 and stats["swaps"]["out"] == stats["swaps"]["in"]


def test_the_longest_prompt_fits(model, tmp_path):
    """Also where steps of --chunk rows do not: raw until their pages are packed, they take more than the prompt."""
    with Server(tmp_path, model, "--kv-bytes", least_bytes(model) + 300_000, "--ctx", 8192, "--prefixes", 0) as server:
        status, reply = server.post("/v1/completions", {"prompt": [5] * 8000, "max_tokens": 1})
        assert status == 413
        longest = int(re.search(r"holds only (\d+)", reply["error"]["message"])[1]) - 1
        assert 256 < longest < 8000
        for n in (longest, longest - 1, longest - 30, longest - 62):
            status, reply = server.post("/v1/completions", {"prompt": [n % 50 + 1] + [5] * (n - 1), "max_tokens": 1})
            assert status == 200, (n, reply)


def test_a_burst_takes_the_free_places(model, tmp_path):
    """Requests that come together have not waited: there is room for all of them."""
    with Server(tmp_path, model, "--parallel", 12, "--queue", 1, *PATIENT) as server:
        async def burst():
            return await asyncio.gather(*(complete(server, seed, letters=300, more_tokens=1) for seed in range(12)))

        assert [status for status, _ in asyncio.run(burst())] == [200] * 12


def test_a_body_of_many_values_is_refused(model, tmp_path):
    """Small as text, large as values."""
    with Server(tmp_path, model) as server:
        for values in ("[]," * 200_000, "0," * 1_500_000):
            status, reply = server.post("/tokenize", f'{{"content": "a", "x": [{values}0]}}'.encode())
            assert status == 413 and "too many values" in reply["error"]["message"]
        status, _ = server.post("/tokenize", {"content": "a", "x": "[{,\\\"" * 400_000})
        assert status == 200, "inside a text they do not count"


def test_a_killed_server_leaves_no_swapped_text(model, tmp_path):
    """Two texts that do not fit together, again and again: one is on disk while the other is computed. The server is
    killed when it has such a file, which has no name."""
    with Server(tmp_path, model, "--parallel", 2, *PATIENT, "--kv-bytes", least_bytes(model) + 600_000) as server:
        def ask(letter):
            with contextlib.suppress(OSError):
                while True:
                    server.post("/v1/completions", {"prompt": make_prompt(0) + letter, "max_tokens": 8000, "grammar": ENDLESS})

        def has_swapped(stats):
            if not stats["jobs"]["swapped"]:
                return False
            server.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
            files = [os.readlink(link) for link in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()]
            if any("quire-swap" in name and name.endswith("(deleted)") for name in files):
                return True
            server.process.send_signal(signal.SIGCONT)
            return False

        clients = [threading.Thread(target=ask, args=letter) for letter in "bc"]
        for client in clients:
            client.start()
        try:
            server.wait_until(has_swapped)
        finally:
            server.stop(signal.SIGKILL)
            for client in clients:
                client.join()
    assert [path.name for path in tmp_path.iterdir()] == ["server.log"]
