"""`quire serve` as its users meet it: the official `openai` client, curl-like requests, and many of them at once."""

import asyncio
import json
import random
import socket
import subprocess
import time

import pytest

import engine_models as models
from conftest import full_sweep
from engine_vocab import sentence_piece
from redis_server import redis  # noqa: F401 (a fixture)
from serve import PROGRAM, Server

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="built without the command line")

# These letters are one token each, and the text never ends by itself.
ENDLESS = "root ::= [bcdfghjkmnpqtvwxz] root"
QUESTION = [{"role": "system", "content": "Answer briefly. " * 12}, {"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Four layers, a vocabulary of bytes and a chat template. Its texts are noise, but the same noise every time."""
    return models.make(tmp_path_factory.mktemp("model") / "tiny.gguf", "llama", layers=2,
                       more_keys=sentence_piece(chat_template="chatml"))


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), model, "--exact", "--name", "tiny", "--parallel", 8) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300)


def ask(client, **changes):
    options = dict(model="tiny", messages=QUESTION, max_tokens=24, temperature=0, extra_body={"grammar": ENDLESS})
    return client.chat.completions.create(**{**options, **changes})


# ---------------------------------------------------------------- the official client

def test_chat(client):
    reply = ask(client)
    assert reply.object == "chat.completion" and reply.model == "tiny" and len(reply.choices) == 1
    choice = reply.choices[0]
    assert choice.message.role == "assistant" and len(choice.message.content) == 24 and choice.finish_reason == "length"
    assert reply.usage.completion_tokens == 24
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_chat_streams(client):
    whole = ask(client).choices[0].message.content
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 24 and not chunks[-1].choices


def test_async_client(server):
    async def both():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", timeout=300) as client:
            stream = await ask(client, stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            return "".join(parts), (await ask(client)).choices[0].message.content

    streamed, whole = asyncio.run(both())
    assert streamed == whole


def test_completions(client):
    reply = client.completions.create(model="tiny", prompt="one two three", max_tokens=8, temperature=0, logprobs=3,
                                      extra_body={"grammar": ENDLESS})
    assert len(reply.choices[0].text) == 8 and len(reply.choices[0].logprobs.tokens) == 8
    assert all(value <= 0 for value in reply.choices[0].logprobs.token_logprobs)


def test_models(client):
    assert [m.id for m in client.models.list()] == ["tiny"]


def test_choices_differ_and_a_seed_repeats_them(client):
    def three(seed):
        return [c.message.content for c in ask(client, n=3, temperature=1.5, seed=seed).choices]

    first = three(7)
    assert len(set(first)) == 3 and three(7) == first and three(8) != first


def test_a_prompt_is_computed_once(client):
    prompt = [{"role": "user", "content": "this prompt is new: " + "x" * 300}]
    assert ask(client, messages=prompt).usage.prompt_tokens_details.cached_tokens < 64
    again = ask(client, messages=prompt)
    assert again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens - 64


def test_stop_texts(client):
    whole = ask(client, max_tokens=40).choices[0].message.content
    stop = whole[10:13]
    reply = ask(client, max_tokens=40, stop=[stop]).choices[0]
    assert reply.finish_reason == "stop" and reply.message.content == whole[:whole.index(stop)]
    chunks = ask(client, max_tokens=40, stop=[stop], stream=True)
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == whole[:whole.index(stop)]


def test_logprobs(client):
    content = ask(client, logprobs=True, top_logprobs=4, max_tokens=5).choices[0].logprobs.content
    assert len(content) == 5
    for token in content:
        values = [top.logprob for top in token.top_logprobs]
        assert len(values) == 4 and values == sorted(values, reverse=True) and token.logprob <= values[0]


def test_json_schema(client):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
              "required": ["ok", "kind"], "additionalProperties": False}
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for seed in range(3):
        reply = ask(client, temperature=1, seed=seed, max_tokens=400, response_format=format, extra_body={})
        if reply.choices[0].finish_reason == "stop":  # noise may fill the text with blanks
            value = json.loads(reply.choices[0].message.content)
            assert set(value) == {"ok", "kind"} and value["kind"] in "ab" and isinstance(value["ok"], bool)


def test_a_users_text_is_no_control_token(server):
    def count(text):
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        return server.post("/v1/chat/completions", body)[1]["usage"]["prompt_tokens"]

    assert count("<|im_end|>") - count("") >= len("<|im_end|>") - 1


def test_errors_have_words(client):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        ask(client, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="messages"):
        ask(client, messages=[])
    with pytest.raises(openai.BadRequestError, match="grammar"):
        ask(client, extra_body={"grammar": "root := ("})
    with pytest.raises(openai.APIStatusError, match="tokens") as too_long:
        ask(client, messages=[{"role": "user", "content": "x" * 20000}])
    assert too_long.value.status_code == 413


def test_codecs_by_request(model, tmp_path):
    with Server(tmp_path, model, kv="k8v8,none") as server:
        body = {"messages": QUESTION, "max_tokens": 4, "kv": "none"}
        assert server.post("/v1/chat/completions", body)[0] == 200
        status, reply = server.post("/v1/chat/completions", {**body, "kv": "k3v3"})
        assert status == 400 and "k8v8" in reply["error"]["message"]
        assert [cache["kv"] for cache in server.stats()["caches"]] == ["k8v8", "none"]


def test_keys_and_isolation(model, tmp_path):
    """With --isolate a prompt is computed once per key, without it once."""
    keys = tmp_path / "keys"
    keys.write_text("# two users\nfirst-key\nsecond-key\n")
    keys.chmod(0o600)
    prompt = [{"role": "user", "content": "nobody else may know of this: " + "x" * 300}]

    def cached(server, key):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=300)
        return ask(client, messages=prompt).usage.prompt_tokens_details.cached_tokens

    with Server(tmp_path / "apart", model, "--api-keys", keys, "--isolate") as apart, \
            Server(tmp_path / "together", model, "--api-keys", keys) as together:
        with pytest.raises(openai.AuthenticationError):
            cached(apart, "third-key")
        assert cached(apart, "first-key") == 0 and cached(apart, "second-key") == 0
        assert cached(apart, "first-key") > 256 and cached(apart, "second-key") > 256
        assert cached(together, "first-key") == 0 and cached(together, "second-key") > 256


def test_two_servers_share_prefixes_through_redis(model, tmp_path, redis, monkeypatch):
    """Answers are the same, computed or found. Without its Redis a server goes on, says so once, and counts."""
    url, ask_redis = redis
    monkeypatch.setenv("QUIRE_REDIS_PASSWORD", "hush")
    prompt = [{"role": "user", "content": "both servers know this: " + "x" * 600}]
    arguments = ["--exact", "--prefixes", 0, "--store", url + "?timeout=500"]

    def answer(server, **changes):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300)
        reply = ask(client, messages=prompt, **changes)
        return reply.choices[0].message.content, reply.usage.prompt_tokens_details.cached_tokens

    def metric(server, name):
        lines = server.get("/metrics").decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    with Server(tmp_path / "one", model, *arguments) as one, Server(tmp_path / "two", model, *arguments) as two:
        text, cached = answer(one)
        assert cached == 0
        until = time.monotonic() + 60
        while metric(one, "quire_store_tier_written_records_total") == 0 \
                or metric(one, "quire_store_tier_queued_bytes") > 0:
            assert time.monotonic() < until
            time.sleep(0.05)
        found, cached = answer(two)
        assert found == text and cached >= 512
        try:
            ask_redis("SHUTDOWN", "NOSAVE")
        except (OSError, IndexError, ValueError):
            pass  # it has closed the connection
        assert answer(two)[0] == text and answer(one)[0] == text
        assert answer(two, max_tokens=30)[0].startswith(text)
        assert metric(two, "quire_store_tier_errors_total") > 0
        assert two.stats()["jobs"]["failed"] == 0


# ---------------------------------------------------------------- leaving and waiting

def request_bytes(body):
    text = json.dumps(body).encode()
    return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(text)) + text


def connect(server, body):
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=120)
    connection.sendall(request_bytes(body))
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_who_disconnects_frees_its_pages(stream, server):
    before = server.stats()["jobs"]["cancelled"]
    connection = connect(server, {"messages": QUESTION, "max_tokens": 3000, "stream": stream, "grammar": ENDLESS})
    server.wait_until(lambda s: s["jobs"]["running"] == 1)
    connection.close()
    server.wait_until(lambda s: s["jobs"]["cancelled"] == before + 1 and s["jobs"]["running"] == 0)


def test_a_full_queue_says_so(model, tmp_path):
    body = {"messages": QUESTION, "max_tokens": 3000, "stream": True, "grammar": ENDLESS}
    with Server(tmp_path, model, "--parallel", 1, "--queue", 1) as server:
        running = connect(server, body)
        server.wait_until(lambda s: s["jobs"]["running"] == 1)
        waiting = connect(server, body)
        server.wait_until(lambda s: s["jobs"]["waiting"] == 1)
        status, reply = server.post("/v1/chat/completions", body)
        assert status == 429 and "waiting" in reply["error"]["message"]
        running.close()
        server.wait_until(lambda s: s["jobs"]["running"] == 1 and s["jobs"]["waiting"] == 0)
        waiting.close()


def test_sigterm_finishes_what_runs(model, tmp_path):
    with Server(tmp_path, model) as server:
        connection = connect(server, {"messages": QUESTION, "max_tokens": 400, "stream": True, "grammar": ENDLESS})
        server.wait_until(lambda s: s["jobs"]["running"] == 1)
        assert server.stop() == 0
        received = b""
        while part := connection.recv(1 << 16):
            received += part
        assert b"[DONE]" in received
        assert not list(tmp_path.glob("quire-swap*"))


# ---------------------------------------------------------------- many at once

WORDS = "the quick brown fox jumps over lazy dogs while rain falls on stone and night comes down".split()


def make_prompt(seed):
    """100 to 3000 letters; one in three begins as many others do."""
    chosen = random.Random(seed)
    letters = chosen.randint(100, 3000)
    start = " ".join(random.Random(seed % 4).choices(WORDS, k=200)) if seed % 3 == 0 else ""
    return (start + " ".join(chosen.choices(WORDS, k=700)))[:letters]


async def complete(server, seed, leave_after=None, letters=3000, more_tokens=0):
    """Status and text of a streamed completion. leave_after: closes the connection after so many chunks."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = {"prompt": make_prompt(seed)[:letters], "max_tokens": 8 + seed % 40 + more_tokens, "temperature": 0.8,
            "seed": seed, "stream": True, "grammar": ENDLESS}
    text = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                 b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
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


def test_many_clients(model, tmp_path):
    """64 clients, some of which leave; every answer is what the server says when it has nothing else to do."""
    seconds = 600 if full_sweep() else 20
    with Server(tmp_path, model, "--exact", "--parallel", 12, "--prefixes", 0, "--connections", 100) as server:
        seeds = list(range(40))
        alone = {seed: asyncio.run(complete(server, seed)) for seed in seeds}
        assert all(status == 200 and len(text) == 8 + seed % 40 for seed, (status, text) in alone.items())
        until, wrong, served, left = time.monotonic() + seconds, [], 0, 0

        async def client(number):
            nonlocal served, left
            chosen = random.Random(number)
            while time.monotonic() < until:
                seed = chosen.choice(seeds)
                leave = chosen.randint(0, 5) if chosen.random() < 0.2 else None
                answer = await complete(server, seed, leave)
                if leave is not None:
                    left += 1
                    continue
                served += 1
                if answer != alone[seed]:
                    wrong.append((seed, answer, alone[seed]))

        async def everybody():
            await asyncio.gather(*(client(number) for number in range(64)))

        resident = server.resident()
        asyncio.run(everybody())
        assert not wrong, wrong[:3]
        assert served > 64 and left > 0
        stats = server.wait_until(lambda s: s["jobs"]["running"] == s["jobs"]["waiting"] == 0)
        cache = stats["caches"][0]
        assert cache["sequences"] == 0 and cache["tokens"] == 0
        assert cache["bytes"]["sealed"] == cache["bytes"]["open"] == 0
        assert stats["jobs"]["failed"] == 0
        # Buffers of 64 connections and jobs; what leaked per request would be more after `served` of them.
        assert server.resident() < resident + 64 * 2**20
        assert server.stop() == 0


def test_a_full_cache_swaps_and_goes_on(model, tmp_path):
    """A pool of a few texts and 12 clients: the answers are the same, though some are swapped to disk on the way."""
    command = [PROGRAM, "serve", "-m", model, "--kv", "k8v4", "--port", "0", "-t", "1", "--kv-bytes", "1K"]
    smallest = subprocess.run(command, capture_output=True, text=True, timeout=120)
    least = int(smallest.stderr.split("at least ")[1].split()[0])
    arguments = ["--exact", "--parallel", 12, "--prefixes", 2]
    with Server(tmp_path / "small", model, *arguments, "--kv-bytes", least + 1_200_000) as small, \
            Server(tmp_path / "large", model, *arguments) as large:
        async def all_of(server):
            return await asyncio.gather(*(complete(server, seed, letters=200, more_tokens=400) for seed in range(24)))

        assert asyncio.run(all_of(small)) == asyncio.run(all_of(large))
        swaps = small.stats()["swaps"]
        assert swaps["out"] > 0 and swaps["out"] == swaps["in"]
