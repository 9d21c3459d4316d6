"""`quire serve` as its users meet it: the official `openai` client and curl-like requests."""

import asyncio
import json
import re
import socket
import subprocess
import time
import urllib.request

import pytest

import engine_models as models
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


def test_no_grammar(model, tmp_path):
    with Server(tmp_path, model, "--no-grammar") as server:
        body = {"messages": QUESTION, "max_tokens": 4}
        assert server.post("/v1/chat/completions", body)[0] == 200
        status, reply = server.post("/v1/chat/completions", {**body, "grammar": ENDLESS})
        assert status == 400 and reply["error"]["param"] == "grammar"
        status, reply = server.post("/v1/chat/completions", {**body, "response_format": {"type": "json_object"}})
        assert status == 400 and reply["error"]["param"] == "response_format"


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
        page = urllib.request.urlopen(apart.url + "/").read().decode()  # it asks for the key itself
        for name in re.findall(r'(?:src|href)="([a-z_]+\.(?:js|css))"', page):
            assert len(urllib.request.urlopen(f"{apart.url}/{name}").read()) > 100
        assert page.count("<script") == page.count("<script defer src=") > 3 and "<style" not in page
        assert cached(apart, "first-key") == 0 and cached(apart, "second-key") == 0
        assert cached(apart, "first-key") > 256 and cached(apart, "second-key") > 256
        assert cached(together, "first-key") == 0 and cached(together, "second-key") > 256


def test_two_servers_share_prefixes_through_redis(model, tmp_path, redis, monkeypatch):
    """Answers are the same, computed or found. Without its Redis a server goes on, says so once, and counts."""
    monkeypatch.setenv("QUIRE_REDIS_PASSWORD", "hush")
    prompt = [{"role": "user", "content": "both servers know this: " + "x" * 600}]
    log = tmp_path / "two.log"
    arguments = ["--exact", "--prefixes", 0, "--store", redis.url + "?timeout=500"]

    def answer(server, **changes):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300)
        reply = ask(client, messages=prompt, **changes)
        return reply.choices[0].message.content, reply.usage.prompt_tokens_details.cached_tokens

    with Server(tmp_path / "one", model, *arguments) as one, \
            Server(tmp_path / "two", model, *arguments, "--log", log, log=log) as two:
        text, cached = answer(one)
        assert cached == 0
        until = time.monotonic() + 60
        while one.metric("quire_store_tier_written_records_total") == 0 \
                or one.metric("quire_store_tier_queued_bytes") > 0:
            assert time.monotonic() < until
            time.sleep(0.05)
        found, cached = answer(two)
        assert found == text and cached >= 512
        redis.kill()
        assert answer(two)[0] == text and answer(one)[0] == text
        assert answer(two, max_tokens=30)[0].startswith(text)
        assert two.metric("quire_store_tier_errors_total") > 0
        stats = two.stats()
        assert stats["jobs"]["failed"] == 0
        assert [(tier["place"], tier["failing"]) for tier in stats["tiers"]] == [(redis.url, True)]
        assert log.read_text().count(f"Z the store goes on without {redis.url}: ") == 1  # a line of the log, with its time


def stored(directory, file):
    """Tokens and bytes of the longest text in a store."""
    def quire(*words):
        return subprocess.run([PROGRAM, "store", *map(str, words)], capture_output=True, text=True, check=True).stdout

    text = max(json.loads(quire("list", directory, "--json")), key=lambda entry: entry["n_tokens"])
    quire("export", directory, text["key"], "-o", file)
    return text["n_tokens"], file.read_bytes()


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_an_answer_is_found_by_the_next_turn(arch, tmp_path):
    """Another server computes of prompt + answer + question only what is new. The pages that were generated one token
    at a time are, byte for byte, those of a cold prompt; also with a sliding window, which they leave."""
    model = models.make(tmp_path / "tiny.gguf", arch, more_keys=sentence_piece(chat_template="chatml"))
    prompt, question = "Tell me everything about stone. " * 9, " And about the rain?"

    def run(name, prompt, n, *arguments):
        with Server(tmp_path / name, model, "--prefixes", 0, *arguments) as server:
            body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "grammar": ENDLESS}
            reply = server.post("/v1/completions", body)[1]
            assert server.stop() == 0
        usage = reply["usage"]
        return reply["choices"][0]["text"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    exact = ["--exact", "--store", tmp_path / "store"]
    answer, n_prompt, _ = run("first", prompt, 200, *exact)
    generated = stored(tmp_path / "store", tmp_path / "generated.quire")
    text, n_tokens, n_cached = run("second", prompt + answer + question, 30, *exact)
    assert n_cached == (n_prompt + 199) // 64 * 64  # the last token was not computed
    assert (text, n_tokens, 0) == run("cold", prompt + answer + question, 30, "--exact")
    run("prefilled", prompt + answer, 1, "--exact", "--store", tmp_path / "cold-store")
    assert generated == stored(tmp_path / "cold-store", tmp_path / "prefilled.quire")


def test_an_inexact_answer_is_not_stored(model, tmp_path):
    """Its pages may differ from those of a cold prompt."""
    with Server(tmp_path, model, "--prefixes", 0, "--store", tmp_path / "store") as server:
        body = {"prompt": "x" * 200, "max_tokens": 200, "temperature": 0, "grammar": ENDLESS}
        server.post("/v1/completions", body)
        assert server.stop() == 0
    assert stored(tmp_path / "store", tmp_path / "file")[0] == 192


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
