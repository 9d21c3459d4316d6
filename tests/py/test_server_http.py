"""The HTTP layer of `quire serve` over a scheduler and an API that need no model (tests/server/fake_parts.h): routes, limits,
keys, streaming, clients that leave, logs, signals. Whatever takes time is waited for; no case measures it."""

import contextlib
import datetime
import http.client
import itertools
import json
import os
import platform
import random
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from redis_server import redis  # noqa: F401 (a fixture)

PROGRAM = os.environ.get("QUIRE_FAKE_SERVE")
PATIENCE = 60  # seconds until a case gives up waiting

pytestmark = pytest.mark.skipif(not PROGRAM, reason="QUIRE_FAKE_SERVE names no program")

# gcc's LeakSanitizer walks a table of all possible addresses on aarch64, which takes 4 seconds at the end of each process:
# there it looks at every eighth server, the one of most cases among them.
LEAK_CHECKS = itertools.cycle([1] + 7 * [0] if platform.machine() == "aarch64" else [1])


def sanitizer():
    options = [os.environ.get("ASAN_OPTIONS"), f"detect_leaks={next(LEAK_CHECKS)}"]
    return {**os.environ, "ASAN_OPTIONS": ":".join(filter(None, options))}


def until(condition, what):
    """Waits until condition() is true, and returns what it returned."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"waited {PATIENCE} s for: {what}")


class Server:
    """A running one; use it through running(), which also ends it where a case fails."""

    def __init__(self, directory, **options):
        self.log_path = directory / "log"
        options.setdefault("log_path", self.log_path)
        self.errors = open(directory / "stderr", "w+")
        self.process = subprocess.Popen([PROGRAM] + [f"{k}={v}" for k, v in options.items()], stderr=self.errors, env=sanitizer())
        self.port = int(until(self._started, "the start line").group(1))

    def _started(self):
        if self.process.poll() is not None:
            self.errors.seek(0)
            raise AssertionError("the server ended: " + self.errors.read())
        return re.search(r"listens on http://\S+:(\d+) ", self.log())

    def log(self):
        return self.log_path.read_text() if self.log_path.exists() else ""

    def lines(self, pattern):
        return [line for line in self.log().splitlines() if re.search(pattern, line)]

    def ask(self, method, path, body=None, headers=None, port=None):
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=PATIENCE)
        try:
            if isinstance(body, dict):
                body = json.dumps(body)
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            reply.body = reply.read()
            return reply
        finally:
            connection.close()

    def stats(self):
        return json.loads(self.ask("GET", "/stats").body)

    def jobs(self):
        return self.stats()["jobs"]

    def raw(self, data=b""):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        s.sendall(data)
        return s

    def stop(self):
        """Ends it and checks that it ended well: under a sanitizer, that nothing leaked."""
        if self.errors.closed:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        self.errors.seek(0)
        assert code == 0, self.errors.read()
        self.errors.close()


@contextlib.contextmanager
def running(directory, **options):
    server = Server(directory, **options)
    try:
        yield server
        server.stop()
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with running(tmp_path_factory.mktemp("plain"), max_body=100000) as server:
        yield server


def read_all(s):
    data = b""
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def error_of(reply):
    error = json.loads(reply.body)["error"]
    assert error["message"] and error["type"]
    assert reply.getheader("Content-Type") == "application/json"
    return error


def post(script="", **fields):
    return {"prompt": "p", "script": script, **fields}


def head(method, path, *more):
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *more, "", ""]).encode()


# ---------------------------------------------------------------- routes

def test_health(plain):
    reply = plain.ask("GET", "/health")
    assert reply.status == 200 and json.loads(reply.body) == {"status": "ok"}


def test_head_has_no_body(plain):
    for path in ["/health", "/", "/v1/models", "/metrics", "/stats"]:
        reply = plain.ask("HEAD", path)
        assert reply.status == 200 and reply.body == b"" and int(reply.getheader("Content-Length")) > 0, path


@pytest.mark.parametrize("path", ["/v2/nothing", "/health/", "/health%00", "/%00", "//", "/../health", "/v1/models/", "/%", "/%zz"])
def test_unknown_path(plain, path):
    reply = plain.ask("GET", path)
    assert reply.status == 404
    error_of(reply)


def test_escaped_path(plain):
    assert plain.ask("GET", "/%68ealth?some=query%00").status == 200


@pytest.mark.parametrize("method, path, allow", [("GET", "/v1/chat/completions", "POST"), ("POST", "/health", "GET, HEAD"),
                                                 ("DELETE", "/", "GET, HEAD"), ("OPTIONS", "/v1/models", "GET, HEAD"),
                                                 ("BREW", "/tokenize", "POST")])
def test_wrong_method(plain, method, path, allow):
    reply = plain.ask(method, path)
    assert reply.status == 405 and reply.getheader("Allow") == allow
    error_of(reply)


def test_models(plain):
    models = json.loads(plain.ask("GET", "/v1/models").body)["data"]
    assert [m["id"] for m in models] == ["fake"]
    one = plain.ask("GET", "/v1/models/fake")
    assert one.status == 200 and json.loads(one.body) == models[0]
    missing = plain.ask("GET", "/v1/models/other")
    assert missing.status == 404 and error_of(missing)["code"] == "model_not_found"


def test_model_names_with_a_slash(tmp_path):
    with running(tmp_path, model_name="org/name") as server:
        assert json.loads(server.ask("GET", "/v1/models/org/name").body)["id"] == "org/name"


def test_tokenize(plain):
    assert json.loads(plain.ask("POST", "/tokenize", "some text").body) == {"body": "some text"}
    empty = plain.ask("POST", "/tokenize")
    assert empty.status == 400
    error_of(empty)


def test_page(plain):
    reply = plain.ask("GET", "/")
    assert reply.status == 200 and reply.body.startswith(b"<!doctype html>")
    assert reply.getheader("Content-Type") == "text/html; charset=utf-8"
    assert "default-src 'none'" in reply.getheader("Content-Security-Policy")
    assert reply.getheader("X-Content-Type-Options") == "nosniff"
    again = plain.ask("GET", "/index.html", headers={"If-None-Match": reply.getheader("ETag")})
    assert again.status == 304 and again.body == b""
    changed = plain.ask("GET", "/", headers={"If-None-Match": '"other"'})
    assert changed.status == 200 and changed.body == reply.body
    style = plain.ask("GET", "/style.css")
    assert style.getheader("Content-Type") == "text/css; charset=utf-8"
    assert style.getheader("ETag") != reply.getheader("ETag")


def test_stats(plain):
    stats = plain.stats()
    assert list(stats) == ["version", "uptime_seconds", "exact", "model", "jobs", "tokens", "steps", "swaps", "store_errors",
                           "caches", "sequences", "store", "tiers"]
    assert stats["model"] == {"name": "fake", "architecture": "fake", "parameters": 123, "context": 4096, "weight_bytes": 456}
    assert set(stats["jobs"]) == {"running", "waiting", "swapped", "submitted", "finished", "failed", "cancelled", "refused"}
    assert set(stats["tokens"]) == {"prompt", "generated", "cached_ram", "cached_store", "computed", "prefill_per_second",
                                    "decode_per_second"}
    assert set(stats["steps"]) == {"count", "rows", "seconds"} and set(stats["swaps"]) == {"out", "in"}
    cache, = stats["caches"]
    assert set(cache) == {"kv", "isa", "tokens", "sequences", "bytes", "bf16_token_bytes", "page_bytes", "layers"}
    assert set(cache["bytes"]) == {"budget", "total", "arena", "sealed", "open", "last_raw", "sinks", "free"}
    assert cache["bytes"]["budget"] == 8 << 20 and cache["bytes"]["free"] > 0
    assert cache["bf16_token_bytes"] == 2 * 2 * (64 + 64) * 2  # two layers of their own, two heads, bf16
    layers = cache["layers"]
    assert [layer["layer"] for layer in layers] == [0, 1, 2]
    assert set(layers[0]) == {"layer", "k", "v", "kernel", "bits", "window", "heads", "kv_heads", "packed_read", "raw_read",
                              "fallbacks"}
    assert (layers[0]["k"], layers[0]["v"]) == ("kc8", "vt4")
    # A page of one head has 64 tokens of 64 + 64 elements.
    assert cache["page_bytes"] == pytest.approx(2 * 2 * layers[0]["bits"] * 64 * 128 / 8)
    assert stats["sequences"] == [
        {"job": 1, "cache": 0, "choice": 0, "state": "decoding", "prompt_tokens": 10, "cached_tokens": 4, "length": 12,
         "max_tokens": 20},
        {"job": 2, "cache": 0, "choice": 1, "state": "waiting", "prompt_tokens": 9, "cached_tokens": 0, "length": 0,
         "max_tokens": 5}]
    assert stats["store"] is None


def test_stats_of_a_store(tmp_path):
    try:
        with running(tmp_path, store=tmp_path / "store") as server:
            store = server.stats()["store"]
            metrics = server.ask("GET", "/metrics").body
    except AssertionError as error:
        if "not known" not in str(error):
            raise
        pytest.skip("not here: this build has no store")
    assert set(store) == {"pages", "bytes", "file_bytes", "max_bytes", "hit_pages", "missed_pages", "added_pages",
                          "evicted_pages"}
    assert store["pages"] == 0 and store["max_bytes"] > 0
    assert b"\nquire_store_max_bytes " in metrics


def test_stats_do_not_ask_redis(tmp_path, redis, monkeypatch):  # noqa: F811
    """Sizes there are known only to who looks at every key, which would slow the server and count as a use of each."""
    monkeypatch.setenv("QUIRE_REDIS_PASSWORD", "hush")

    def commands():
        return int(re.search(rb"total_commands_processed:(\d+)", redis.ask("INFO", "stats")).group(1))

    try:
        with running(tmp_path, tier=redis.url) as server:
            before = commands()
            store = server.stats()["store"]
            metrics = server.ask("GET", "/metrics").body
            assert commands() == before + 2  # AUTH and INFO of commands()
    except AssertionError as error:
        if "not known" not in str(error):
            raise
        pytest.skip("not here: this build has no store, or no Redis")
    sizes = {"pages", "bytes", "file_bytes", "max_bytes", "evicted_pages"}
    assert {name for name, value in store.items() if value is None} == sizes
    assert store["hit_pages"] == 0 and b"\nquire_store_hit_pages_total 0" in metrics
    assert b"\nquire_store_max_bytes " not in metrics and b"\nquire_store_tier_errors_total{" in metrics


def test_metrics(plain):
    plain.ask("POST", "/v1/completions", post())
    plain.ask("GET", "/none/of/them")

    def counted():  # a request is counted when its reply has gone out, so the client may be here first
        reply = plain.ask("GET", "/metrics")
        both = b'route="/v1/completions",status="200"' in reply.body and b'route="none",status="404"' in reply.body
        return reply if both else None

    reply = until(counted, "the counts of both requests")
    assert reply.getheader("Content-Type").startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    typed = set(re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram)$", text, re.M))
    helped = set(re.findall(r"^# HELP (\S+) \S", text, re.M))
    assert typed == helped
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = re.fullmatch(r'([a-z_]+(?:\{[a-z]+="[^"]*"(?:,[a-z]+="[^"]*")*\})?) (\S+)', line).groups()
            values[name] = float(value)
            family = re.sub(r"_(bucket|sum|count)$", "", name.split("{")[0])
            assert family in typed or name.split("{")[0] in typed, line
    assert values['quire_http_requests_total{route="/v1/completions",status="200"}'] >= 1
    assert values['quire_http_requests_total{route="none",status="404"}'] >= 1
    assert values["quire_jobs_finished_total"] >= 1
    assert values['quire_time_to_first_token_seconds_bucket{le="+Inf"}'] == values["quire_time_to_first_token_seconds_count"] >= 1
    buckets = [v for n, v in values.items() if n.startswith("quire_http_request_duration_seconds_bucket")]
    assert len(buckets) > 5 and buckets == sorted(buckets)
    assert values['quire_pool_bytes{cache="k8v4",kind="free"}'] > 0


# ---------------------------------------------------------------- text

@pytest.mark.parametrize("path, prefix", [("/v1/completions", "cmpl-"), ("/v1/chat/completions", "chatcmpl-")])
def test_whole_reply(plain, path, prefix):
    reply = plain.ask("POST", path, post("tokens=4"))
    body = json.loads(reply.body)
    assert reply.status == 200 and body["text"] == "word " * 4 and body["completion_tokens"] == 4
    assert body["id"].startswith(prefix) and reply.getheader("X-Request-Id") == body["id"]
    other = json.loads(plain.ask("POST", path, post("tokens=1")).body)
    assert other["id"] != body["id"]


def events(reply):
    """The data of a stream's events."""
    return [event[6:] for event in reply.body.decode().split("\n\n") if event.startswith("data: ")]


def test_streamed_reply(plain):
    reply = plain.ask("POST", "/v1/chat/completions", post("tokens=5 delay=5", stream=True))
    assert reply.status == 200 and reply.getheader("Content-Type").startswith("text/event-stream")
    assert reply.getheader("X-Accel-Buffering") == "no" and reply.getheader("Cache-Control") == "no-cache"
    *chunks, done = events(reply)
    assert done == "[DONE]" and [json.loads(c)["text"] for c in chunks] == ["word "] * 5


def test_events_come_one_by_one(plain):
    """The first is here long before the last."""
    with plain.raw() as s:
        body = json.dumps(post("tokens=1000000 delay=300", stream=True)).encode()
        s.sendall(head("POST", "/v1/completions", f"Content-Length: {len(body)}") + body)
        data = b""
        while b"data: " not in data:
            data += s.recv(65536)
        assert data.count(b"data: ") < 1000


def test_large_streams_arrive_whole(plain):
    """More than any buffer on the way holds."""
    reply = plain.ask("POST", "/v1/completions", post("tokens=20000", stream=True))
    *chunks, done = events(reply)
    assert done == "[DONE]" and len(chunks) == 20000


def test_streams_of_http_1_0(plain):
    body = json.dumps(post(stream=True)).encode()
    with plain.raw(f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body) as s:
        data = read_all(s)
    assert data.startswith(b"HTTP/1.1 200") or data.startswith(b"HTTP/1.0 200")
    assert b"chunked" not in data and data.endswith(b"data: [DONE]\n\n") and data.count(b"word ") == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("why, status, code, retry", [
    ("too_long", 413, "context_length_exceeded", False), ("queue_full", 429, "queue_full", True), ("invalid", 400, None, False),
    ("shutting_down", 503, "unavailable", True), ("no_memory", 500, None, False)])
def test_refused_jobs(plain, why, status, code, retry, stream):
    reply = plain.ask("POST", "/v1/completions", post(f"refuse={why}", stream=stream))
    assert reply.status == status and error_of(reply)["code"] == code
    assert (reply.getheader("Retry-After") is not None) == retry


@pytest.mark.parametrize("stream", [False, True])
def test_failure_before_the_first_event(plain, stream):
    reply = plain.ask("POST", "/v1/completions", post("fail=0", stream=stream))
    assert reply.status == 500 and error_of(reply)["message"] == "The fake job failed."
    late = plain.ask("POST", "/v1/completions", post("late=0", stream=stream))
    assert late.status == 504 and error_of(late)["code"] == "timeout"


def test_failure_in_the_middle(plain):
    reply = plain.ask("POST", "/v1/completions", post("tokens=5 fail=2 delay=50"))
    assert reply.status == 500
    error_of(reply)
    reply = plain.ask("POST", "/v1/completions", post("tokens=5 fail=2 delay=50", stream=True))
    *chunks, error, done = events(reply)
    assert reply.status == 200 and len(chunks) == 2 and done == "[DONE]"
    assert json.loads(error)["error"]["message"] == "The fake job failed."


def test_time_limit_of_the_server(tmp_path):
    with running(tmp_path, request_seconds=1) as server:
        for stream in [False, True]:
            reply = server.ask("POST", "/v1/completions", post("tokens=2 delay=3600000", stream=stream))
            assert reply.status == 504
            error_of(reply)


def test_comments_while_waiting(tmp_path):
    """idle_seconds 2: a comment after a second without an event, so that the connection is not taken for dead."""
    with running(tmp_path, idle_seconds=2) as server:
        reply = server.ask("POST", "/v1/completions", post("tokens=1 delay=4500", stream=True))
        assert reply.status == 200 and b": waiting\n\n" in reply.body
        assert events(reply)[-1] == "[DONE]"


def test_long_wait_without_streaming(tmp_path):
    """A job may take longer than a connection may be idle."""
    with running(tmp_path, idle_seconds=1) as server:
        reply = server.ask("POST", "/v1/completions", post("tokens=1 delay=3500"))
        assert reply.status == 200 and json.loads(reply.body)["text"] == "word "


def test_requests_on_one_connection(plain):
    connection = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=PATIENCE)
    sockets = set()
    for stream in [False, True, False]:
        connection.request("POST", "/v1/completions", json.dumps(post(stream=stream)))
        sockets.add(connection.sock)
        reply = connection.getresponse()
        assert reply.status == 200 and b"word " in reply.read()
    assert len(sockets) == 1
    connection.close()


def test_malformed_json(plain):
    for body in [b"", b"{", b"[]", b"\xff\xfe", b'{"prompt": "\xff"}', b"\0" * 100]:
        reply = plain.ask("POST", "/v1/completions", body)
        assert reply.status == 400, body
        error_of(reply)


@pytest.mark.parametrize("content_type", [None, "application/json", "application/x-www-form-urlencoded", "text/plain"])
def test_content_types(plain, content_type):
    headers = {"Content-Type": content_type} if content_type else {}
    assert plain.ask("POST", "/v1/completions", post(), headers).status == 200


@pytest.mark.parametrize("headers", [{"Content-Type": "multipart/form-data; boundary=x"}, {"Content-Encoding": "gzip"}])
def test_foreign_bodies(plain, headers):
    assert plain.ask("POST", "/v1/completions", post(), headers).status == 415


# ---------------------------------------------------------------- clients that leave

@pytest.mark.parametrize("script", ["tokens=1000000 delay=5", "tokens=2 delay=3600000"])
@pytest.mark.parametrize("stream", [False, True])
def test_client_leaves(plain, stream, script):
    before = plain.jobs()
    body = json.dumps(post(script, stream=stream)).encode()
    s = plain.raw(head("POST", "/v1/completions", f"Content-Length: {len(body)}") + body)
    until(lambda: plain.jobs()["running"] == before["running"] + 1, "the job to run")
    s.close()
    until(lambda: plain.jobs()["cancelled"] == before["cancelled"] + 1, "the job to be cancelled")
    assert plain.jobs()["running"] == before["running"]
    until(lambda: plain.lines(r'"POST /v1/completions" 499 '), "its line in the log")
    assert not plain.lines("pplication")  # libmicrohttpd says so too, but it is no news


def test_client_resets(plain):
    before = plain.jobs()
    body = json.dumps(post("tokens=1000000 delay=5", stream=True)).encode()
    s = plain.raw(head("POST", "/v1/completions", f"Content-Length: {len(body)}") + body)
    s.recv(100)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    s.close()
    until(lambda: plain.jobs()["cancelled"] == before["cancelled"] + 1, "the job to be cancelled")


def test_client_leaves_with_a_request_behind(plain):
    """Bytes that nobody has read yet do not hide the end."""
    before = plain.jobs()
    body = json.dumps(post("tokens=2 delay=3600000")).encode()
    s = plain.raw(head("POST", "/v1/completions", f"Content-Length: {len(body)}") + body)
    until(lambda: plain.jobs()["running"] == before["running"] + 1, "the job to run")
    s.sendall(head("GET", "/health"))
    s.close()
    until(lambda: plain.jobs()["cancelled"] == before["cancelled"] + 1, "the job to be cancelled")


def test_client_does_not_read(tmp_path):
    """A client that neither reads nor leaves is cut off when its buffers are full for idle_seconds."""
    with running(tmp_path, idle_seconds=2) as server:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", server.port))
        body = json.dumps(post("tokens=1000000000", stream=True)).encode()
        s.sendall(head("POST", "/v1/completions", f"Content-Length: {len(body)}") + body)
        until(lambda: server.jobs()["cancelled"] == 1, "the job to be cancelled")
        s.close()


def test_client_leaves_in_the_body(plain):
    s = plain.raw(head("POST", "/v1/completions", "Content-Length: 1000") + b"{")
    time.sleep(0.1)
    s.close()
    assert plain.ask("GET", "/health").status == 200


def test_many_clients_of_which_some_leave(tmp_path):
    """Every answer is right, every job ends, and neither connections nor descriptors are left."""
    def client(number):
        chance = random.Random(number)
        for _ in range(12):
            n, stream = chance.randrange(1, 200), chance.random() < 0.7
            body = json.dumps(post(f"tokens={n} delay={chance.randrange(3)}", stream=stream)).encode()
            with server.raw(head("POST", "/v1/completions", f"Content-Length: {len(body)}", "Connection: close") + body) as s:
                if chance.random() < 0.4:
                    time.sleep(0.1 * chance.random())
                    continue
                words = read_all(s).count(b"word ")
                if words != n:
                    wrong.append((number, n, stream, words))

    wrong = []
    with running(tmp_path) as server:
        def descriptors():
            return len(os.listdir(f"/proc/{server.process.pid}/fd")) if os.path.isdir("/proc/self/fd") else 0

        server.ask("GET", "/health")
        before = descriptors()
        threads = [threading.Thread(target=client, args=(i,)) for i in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        until(lambda: server.jobs()["running"] == 0, "all jobs to end")
        jobs = server.jobs()
        assert jobs["finished"] + jobs["cancelled"] == jobs["submitted"] > 0 and jobs["failed"] == 0 and jobs["cancelled"] > 0
        until(lambda: b"\nquire_http_connections 1\n" in server.ask("GET", "/metrics").body, "connections to be closed")
        until(lambda: descriptors() <= before, "descriptors to be closed")
        assert b"\nquire_http_body_bytes 0\n" in server.ask("GET", "/metrics").body


# ---------------------------------------------------------------- limits

def chunked(data, size):
    pieces = [data[i:i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


def padded(n):
    return json.dumps(post("tokens=1")).ljust(n).encode()


@pytest.mark.parametrize("n, status", [(99999, 200), (100000, 200), (100001, 413), (400000, 413)])
def test_size_of_a_body(plain, n, status):
    reply = plain.ask("POST", "/v1/completions", padded(n))
    assert reply.status == status
    with plain.raw(head("POST", "/v1/completions", "Transfer-Encoding: chunked") + chunked(padded(n), 4000)) as s:
        assert s.recv(100).startswith(b"HTTP/1.1 %d" % status)


def test_huge_lengths(plain):
    """A client that announces more than the server even throws away is told at once."""
    with plain.raw(head("POST", "/v1/completions", "Content-Length: 900000000000")) as s:
        assert read_all(s).startswith(b"HTTP/1.1 413")
    with plain.raw(head("POST", "/v1/completions", "Content-Length: 99999999999999999999999")) as s:
        assert re.match(rb"HTTP/1.1 4\d\d", read_all(s))


def test_chunks_without_end(plain):
    with plain.raw(head("POST", "/v1/completions", "Transfer-Encoding: chunked")) as s:
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                s.sendall(b"2000\r\n" + b" " * 0x2000 + b"\r\n")
            read_all(s)
    until(lambda: plain.lines(r'"POST /v1/completions" 413 '), "its line in the log")


def test_expect_continue(plain):
    body = padded(1000)
    with plain.raw(head("POST", "/v1/completions", "Expect: 100-continue", f"Content-Length: {len(body)}")) as s:
        assert s.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        s.sendall(body)
        assert s.recv(100).startswith(b"HTTP/1.1 200")
    with plain.raw(head("POST", "/v1/completions", "Expect: 100-continue", "Content-Length: 100001")) as s:
        assert read_all(s).startswith(b"HTTP/1.1 413")


def test_many_bodies_at_once(tmp_path):
    """All bodies together may take 16 times the limit of one; then it says 503, and the room comes back."""
    with running(tmp_path, max_body=100000) as server:
        sockets = [server.raw(head("POST", "/v1/completions", "Content-Length: 100000") + padded(99999)) for _ in range(16)]
        until(lambda: b"\nquire_http_body_bytes 1600000\n" in server.ask("GET", "/metrics").body, "the bodies to be read")
        reply = server.ask("POST", "/v1/completions", padded(5000))
        assert reply.status == 503 and reply.getheader("Retry-After")
        for s in sockets:
            s.sendall(b" ")
            assert s.recv(4096).startswith(b"HTTP/1.1 200")
            s.close()
        assert b"\nquire_http_body_bytes 0\n" in server.ask("GET", "/metrics").body
        assert server.ask("POST", "/v1/completions", padded(100000)).status == 200


@pytest.mark.parametrize("request_bytes", [
    b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\nNo colon\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 200000 + b"\r\n\r\n",
    b"GET /%00%ff%0a HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\xff" * 1000 + b"\r\n\r\n"])
def test_malformed_requests(plain, request_bytes):
    """Refused or closed; the server lives on."""
    with plain.raw() as s:
        with contextlib.suppress(ConnectionError):
            s.sendall(request_bytes)
            s.shutdown(socket.SHUT_WR)
        data = read_all(s)
    assert data == b"" or re.match(rb"HTTP/1.\d [45]\d\d", data), data
    assert plain.ask("GET", "/health").status == 200
    assert "<html" not in plain.log()


REST = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"  # it must never be answered behind a request of unclear length


@pytest.mark.parametrize("request_line, headers, message", [
    ("POST /tokenize", ["Content-Length: 46", "Content-Length: 4"], "more than one Content-Length"),
    ("POST /tokenize", ["Content-Length: 4", "content-length: 4"], "more than one Content-Length"),
    ("POST /tokenize", ["Content-Length: 4", "Transfer-Encoding: chunked"], "both Content-Length and Transfer-Encoding"),
    ("POST /tokenize", ["Transfer-Encoding: chunked", "Content-Length: 4"], "both Content-Length and Transfer-Encoding"),
    ("GET /health", ["Transfer-Encoding: identity"], "only Transfer-Encoding"),
    ("GET /health", ["Transfer-Encoding: gzip"], "only Transfer-Encoding"),
    ("POST /tokenize", ["Transfer-Encoding: gzip, chunked"], "only Transfer-Encoding"),
    ("POST /tokenize", ["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"], "only Transfer-Encoding"),
    ("POST /tokenize", ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"], "only Transfer-Encoding"),
    ("POST /tokenize", ["Transfer-Encoding:"], "only Transfer-Encoding"),
    ("POST /tokenize", ["Content-Length : 46"], "name of a header"),
    ("POST /tokenize", ["Transfer-Encoding\t: chunked"], "name of a header"),
    ("POST /tokenize", ["X(): 1"], "name of a header"),
    ("GET /health", ["Host: localhost"], "more than one Host"),
    ("POST /none", ["Content-Length: 4", "Content-Length: 4"], "more than one Content-Length"),
    ("POST /tokenize", ["Expect: 100-continue", "Content-Length: 4", "Content-Length: 4"], "more than one Content-Length")])
def test_unclear_framing(plain, request_line, headers, message):
    """What a proxy could read in another way is refused, and what comes behind it is not read."""
    with plain.raw(head(*request_line.split(), *headers) + b"0\r\n\r\n" + REST) as s:
        said = read_all(s)
    top, _, body = said.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 400 ") and b"\r\nConnection: close" in top
    assert message in json.loads(body)["error"]["message"]


def test_host_is_needed(plain):
    with plain.raw(b"GET /health HTTP/1.1\r\n\r\n" + REST) as s:
        top, _, body = read_all(s).partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 400 ") and "Host" in json.loads(body)["error"]["message"]
    with plain.raw(b"GET /health HTTP/1.0\r\n\r\n") as s:
        assert re.match(rb"HTTP/1.\d 200 ", read_all(s))
    with plain.raw(b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"text", 4)) as s:
        assert re.match(rb"HTTP/1.\d 400 ", read_all(s))


def test_chunks_in_any_case(plain):
    """Also with a request behind them on the same connection."""
    with plain.raw(head("POST", "/tokenize", "transfer-encoding: Chunked") + chunked(b"some text", 4)
                   + head("GET", "/health", "Connection: close")) as s:
        said = read_all(s)
    assert said.count(b"HTTP/1.1 200 ") == 2 and b'{"body": "some text"}' in said


def trickle(s, data):
    """Sends a byte now and then until the other side closes; returns what it said."""
    s.settimeout(0.1)
    deadline = time.monotonic() + PATIENCE
    said = b""
    for i in range(1 << 30):
        assert time.monotonic() < deadline, "the connection is still open"
        with contextlib.suppress(BlockingIOError, socket.timeout):
            try:
                s.sendall(data[i:i + 1] or b"a")
                piece = s.recv(4096)
            except ConnectionError:
                return said
            if not piece:
                return said
            said += piece


def test_slow_headers(tmp_path):
    """One byte now and then keeps no connection open: neither in the request line, nor in headers, nor in a body, nor in a
    second request."""
    with running(tmp_path, header_seconds=1, body_seconds=1, idle_seconds=30) as server:
        with server.raw() as s:
            assert trickle(s, b"GET /health HTTP/1.1") == b""
        with server.raw(b"GET /health HTTP/1.1\r\n") as s:
            assert trickle(s, b"X: y").startswith(b"HTTP/1.1 408")
        with server.raw(head("POST", "/tokenize", "Content-Length: 100000")) as s:
            said = trickle(s, b"abc")
            assert said.startswith(b"HTTP/1.1 408")
            assert json.loads(said.split(b"\r\n\r\n")[1])["error"]["type"] == "timeout_error"
        with server.raw(head("GET", "/health")) as s:
            assert s.recv(4096).startswith(b"HTTP/1.1 200")
            s.sendall(b"GET /health HTTP/1.1\r\n")
            assert trickle(s, b"X: y").startswith(b"HTTP/1.1 408")
        assert b"quire_http_connections_cut_total 4\n" in server.ask("GET", "/metrics").body


@pytest.mark.parametrize("body_seconds, idle_seconds", [(1, 1), (2, 1), (1, 30)])
def test_stalled_body(tmp_path, body_seconds, idle_seconds):
    """A client that sends no more of its body is told why it is cut off, whichever time is the shorter one."""
    with running(tmp_path, body_seconds=body_seconds, idle_seconds=idle_seconds) as server:
        with server.raw(head("POST", "/tokenize", "Content-Length: 100") + b"abc") as s:
            assert read_all(s).startswith(b"HTTP/1.1 408")
        with server.raw(head("POST", "/tokenize", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n") as s:
            assert read_all(s).startswith(b"HTTP/1.1 408")


def test_pause_in_a_body(tmp_path):
    """A body may pause for longer than a connection may be idle. Afterwards the connection may not."""
    with running(tmp_path, body_seconds=PATIENCE, idle_seconds=1) as server:
        with server.raw(head("POST", "/tokenize", "Content-Length: 9") + b"some ") as s:
            time.sleep(2.5)
            s.sendall(b"text")
            said = read_all(s)
            assert said.startswith(b"HTTP/1.1 200") and said.endswith(b'{"body": "some text"}')


def test_idle_connections_are_closed(tmp_path):
    with running(tmp_path, header_seconds=1, idle_seconds=1) as server:
        with server.raw() as silent, server.raw(head("GET", "/health")) as kept:
            assert kept.recv(4096).startswith(b"HTTP/1.1 200")
            assert read_all(silent) == b"" and read_all(kept) == b""


def test_max_connections(tmp_path):
    """A request beyond the limit gets 503; /health is answered; even more connections are closed, until there is room."""
    with running(tmp_path, max_connections=3) as server:
        def open_one():
            s = server.raw(head("GET", "/health"))
            with contextlib.suppress(ConnectionError):
                return (s, s.recv(4096))
            return (s, b"")
        held = [open_one() for _ in range(3)]
        assert all(said.startswith(b"HTTP/1.1 200") and b"Connection: close" not in said for _, said in held)
        s, said = open_one()
        assert said.startswith(b"HTTP/1.1 200") and b"Connection: close" in said
        reply = server.ask("POST", "/v1/completions", post())
        assert reply.status == 503 and reply.getheader("Retry-After") and reply.getheader("Connection") == "close"
        error_of(reply)
        crowd = [server.raw() for _ in range(100)]
        until(lambda: open_one()[1] == b"", "the last place to be taken")
        for s in crowd + [s for s, _ in held]:
            s.close()
        def has_room():
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                return server.ask("POST", "/v1/completions", post()).status == 200
        until(has_room, "room")


# ---------------------------------------------------------------- keys

@pytest.fixture
def keyed(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# people\nfirst-key\n\n  second-key  \n")
    path.chmod(0o600)
    with running(tmp_path, api_keys=path) as server:
        server.keys_path = path
        yield server


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_keys(keyed):
    for key in ["first-key", "second-key"]:
        assert keyed.ask("POST", "/v1/completions", post(), bearer(key)).status == 200
        assert keyed.ask("GET", "/stats", headers={"Authorization": f"bearer  {key}"}).status == 200
        for blanks in [" ", "\t", " \t  "]:  # they are no part of a header's value
            assert keyed.ask("GET", "/stats", headers=bearer(key + blanks)).status == 200
    wrong = [{}, bearer(""), bearer("first"), bearer("first-key2"), bearer("# people"), bearer("x" * 5000), {"Authorization": "first-key"},
             {"Authorization": "Basic first-key"}, bearer("first-key second-key")]
    for headers in wrong:
        for method, path in [("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"),
                             ("GET", "/v1/models/fake"), ("POST", "/tokenize"), ("GET", "/metrics"), ("GET", "/stats")]:
            reply = keyed.ask(method, path, post() if method == "POST" else None, headers)
            assert reply.status == 401, (headers, path)
            assert error_of(reply)["code"] == "invalid_api_key" and reply.getheader("WWW-Authenticate") == "Bearer"
    assert keyed.ask("GET", "/health").status == 200 and keyed.ask("GET", "/").status == 200
    assert "first-key" not in keyed.log()


def test_wrong_key_with_a_large_body(keyed):
    """The answer is read although the client sends megabytes before it listens."""
    assert keyed.ask("POST", "/v1/completions", b" " * (4 << 20), bearer("no")).status == 401


def test_keys_are_read_again(keyed):
    keyed.keys_path.write_text("third-key\n")
    keyed.process.send_signal(signal.SIGHUP)
    until(lambda: keyed.ask("GET", "/stats", headers=bearer("third-key")).status == 200, "the new key")
    assert keyed.ask("GET", "/stats", headers=bearer("first-key")).status == 401
    keyed.keys_path.write_text("# none\n")
    keyed.process.send_signal(signal.SIGHUP)
    until(lambda: keyed.lines("old API keys stay valid.*has no API key"), "the warning")
    assert keyed.ask("GET", "/stats", headers=bearer("third-key")).status == 200


def test_exposed_keys_are_warned_about(tmp_path):
    path = tmp_path / "keys"
    path.write_text("key\n")
    path.chmod(0o644)
    with running(tmp_path, api_keys=path) as server:
        until(lambda: server.lines("warning: other users may read"), "the warning")


# ---------------------------------------------------------------- browsers

def test_other_hosts_are_refused(plain):
    for host in ["localhost", "LOCALHOST:1234", "127.0.0.1", f"127.0.0.1:{plain.port}", "[::1]:80"]:
        assert plain.ask("GET", "/v1/models", headers={"Host": host}).status == 200, host
    for host in ["example.com", "localhost.example.com", "127.0.0.1.example.com", "1.2.3.4", "local", "", ":80", "[::]:80"]:
        reply = plain.ask("GET", "/v1/models", headers={"Host": host})
        assert reply.status == 403, host
        error_of(reply)


def test_hosts_do_not_matter_with_keys(keyed):
    assert keyed.ask("GET", "/stats", headers={"Host": "example.com", **bearer("first-key")}).status == 200


def test_other_origins_are_refused(plain):
    same = f"http://127.0.0.1:{plain.port}"
    assert plain.ask("POST", "/v1/completions", post(), {"Origin": same}).status == 200
    for origin in ["http://example.com", "null", f"http://localhost:{plain.port}", same + "1"]:
        reply = plain.ask("POST", "/v1/completions", post(), {"Origin": origin})
        assert reply.status == 403, origin
        assert reply.getheader("Access-Control-Allow-Origin") is None


def test_cors(tmp_path):
    origin = "https://app.example.com"
    with running(tmp_path, cors_origin=origin) as server:
        reply = server.ask("OPTIONS", "/v1/chat/completions", headers={
            "Origin": origin, "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"})
        assert reply.status == 204 and reply.body == b""
        assert reply.getheader("Access-Control-Allow-Origin") == origin and reply.getheader("Vary") == "Origin"
        assert reply.getheader("Access-Control-Allow-Methods") == "POST"
        assert reply.getheader("Access-Control-Allow-Headers") == "authorization,content-type,x-stainless-os"
        for stream in [False, True]:
            reply = server.ask("POST", "/v1/completions", post(stream=stream), {"Origin": origin})
            assert reply.status == 200 and reply.getheader("Access-Control-Allow-Origin") == origin
        assert server.ask("POST", "/v1/completions", post(), {"Origin": "https://other.example.com"}).status == 403


def test_cors_needs_no_key_for_preflight(tmp_path):
    path = tmp_path / "keys"
    path.write_text("key\n")
    with running(tmp_path, cors_origin="*", api_keys=path) as server:
        assert server.ask("OPTIONS", "/v1/completions", headers={"Origin": "https://a.example"}).status == 204
        reply = server.ask("POST", "/v1/completions", post(), {"Origin": "https://a.example"})
        assert reply.status == 401 and reply.getheader("Access-Control-Allow-Origin") == "*"
        reply = server.ask("POST", "/v1/completions", post(), {"Origin": "https://a.example", **bearer("key")})
        assert reply.status == 200


# ---------------------------------------------------------------- logs

def test_log_of_a_request(plain):
    reply = plain.ask("POST", "/v1/chat/completions", post("tokens=4", prompt="very secret"))
    name = reply.getheader("X-Request-Id")
    line = until(lambda: plain.lines(name), "its line")[-1]
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 127\.0\.0\.1:\d+ "POST /v1/chat/completions" 200 '
                        rf'{len(reply.body)}B \d+ms prompt=7 cached=5 generated=4 queue=0ms {name}', line)
    assert "very secret" not in plain.log()


def test_log_of_prompts(tmp_path):
    with running(tmp_path, log_prompts=1) as server:
        server.ask("POST", "/v1/completions", post(prompt='a "b"\n\x1b[31m é\\'))
        until(lambda: server.lines(r'prompt cmpl-[0-9a-f]{24} "a \\"b\\"\\x0a\\x1b\[31m \\xc3\\xa9\\\\"$'), "the prompt")


def test_log_is_escaped(plain):
    plain.ask("GET", "/x%0a%0d%1b%5b31m%22%5c%c3%a9")
    with plain.raw(b"\x1b[31mGE\x07T /y HTTP/1.1\r\nHost: localhost\r\n\r\n") as s:
        s.recv(4096)
    until(lambda: plain.lines(r'"GET /x\\x0a\\x0d\\x1b\[31m\\"\\\\\\xc3\\xa9" 404 '), "the escaped line")
    until(lambda: plain.lines(r'/y" 4\d\d '), "the second line")
    raw = plain.log_path.read_bytes()
    assert all(byte == 10 or 32 <= byte < 127 for byte in raw)
    assert all(re.match(rb"\d{4}-", line) for line in raw.splitlines())


def test_log_is_opened_again(tmp_path):
    with running(tmp_path) as server:
        old = tmp_path / "old"
        server.log_path.rename(old)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: server.lines("SIGHUP"), "the new log")
        server.ask("GET", "/health")
        until(lambda: server.lines('"GET /health" 200'), "its line")
        assert '"GET /health"' not in old.read_text()


def test_log_on_stderr(tmp_path):
    with open(tmp_path / "stderr", "w+") as errors:
        process = subprocess.Popen([PROGRAM], stderr=errors)
        until(lambda: "listens on" in (tmp_path / "stderr").read_text(), "the start line")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        assert "stopped" in (tmp_path / "stderr").read_text()


# ---------------------------------------------------------------- start and stop

def test_start_line(plain):
    line, = plain.lines("listens on")
    assert f"listens on http://127.0.0.1:{plain.port} model=fake kv=k8v4 exact=no keys=0" in line


def test_ipv6(tmp_path):
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError:
        pytest.skip("not here: this machine has no IPv6")
    with running(tmp_path, host="::1") as server:
        connection = http.client.HTTPConnection("::1", server.port, timeout=PATIENCE)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        until(lambda: server.lines(r" \[::1\]:\d+ "), "its line")


@pytest.mark.parametrize("options, message", [
    ({"port": "taken"}, "cannot listen on 127.0.0.1 port"), ({"host": "no.such.host.invalid"}, "is not an address"),
    ({"api_keys": "/none"}, "the API keys in /none cannot be read"), ({"log_path": "/none/log"}, "cannot be opened"),
    ({"max_connections": 0}, "must be at least 1"), ({"header_seconds": 0}, "must be at least 1"),
    ({"model_name": "caf\udce9"}, "name is not UTF-8")])
def test_bad_starts(tmp_path, options, message):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        options = {k: s.getsockname()[1] if v == "taken" else v for k, v in options.items()}
        done = subprocess.run([PROGRAM] + [f"{k}={v}" for k, v in options.items()], capture_output=True, text=True,
                              timeout=PATIENCE, env=sanitizer())
    assert done.returncode == 1 and message in done.stderr


def test_bad_key_files(tmp_path):
    path = tmp_path / "keys"
    for text, message in [("", "has no API key"), ("a" * 256, "is too long"), ("a" * 100000 + "\n", "is too long")]:
        path.write_text(text)
        done = subprocess.run([PROGRAM, f"api_keys={path}"], capture_output=True, text=True, timeout=PATIENCE,
                              env=sanitizer())
        assert done.returncode == 1 and message in done.stderr
    path.write_text("# " + "long comment " * 1000 + "\n" + "k" * 255)
    with running(tmp_path, api_keys=path) as server:
        assert server.ask("GET", "/stats", headers=bearer("k" * 255)).status == 200


def test_drain(tmp_path):
    """What runs is finished; meanwhile /health fails and new work is refused."""
    with running(tmp_path) as server:
        body = json.dumps(post("tokens=4 delay=1000", stream=True)).encode()
        s = server.raw(head("POST", "/v1/completions", f"Content-Length: {len(body)}") + body)
        until(lambda: server.jobs()["running"] == 1, "the job to run")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.lines("stopping"), "the signal")
        reply = server.ask("GET", "/health")
        assert reply.status == 503 and reply.getheader("Connection") == "close"
        reply = server.ask("POST", "/v1/completions", post())
        assert reply.status == 503 and reply.getheader("Retry-After")
        data = read_all(s)
        assert data.count(b"word ") == 4 and b"data: [DONE]\n\n" in data
        server.stop()
        assert server.lines("stopped$")


def test_drain_waits_for_readers(tmp_path):
    """A reply that has been computed, but not been read, is sent to the end."""
    with running(tmp_path) as server:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", server.port))
        body = json.dumps(post("tokens=100 words=10000")).encode()
        s.sendall(head("POST", "/v1/completions", f"Content-Length: {len(body)}", "Connection: close") + body)
        until(lambda: server.jobs()["finished"] == 1, "the job to finish")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.lines("stopping:"), "the signal")
        assert read_all(s).count(b"word ") == 1000000
        s.close()
        server.stop()


def test_second_signal(tmp_path):
    """Jobs that would run for an hour fail."""
    with running(tmp_path) as server:
        body = json.dumps(post("tokens=2 delay=3600000")).encode()
        sockets = [server.raw(head("POST", "/v1/completions", f"Content-Length: {len(body)}") + body) for _ in range(3)]
        until(lambda: server.jobs()["running"] == 3, "the jobs to run")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.lines("stopping:"), "the first signal")
        server.process.send_signal(signal.SIGINT)
        for s in sockets:
            assert read_all(s).startswith(b"HTTP/1.1 503")
        server.stop()


def test_second_signal_does_not_wait_for_readers(tmp_path):
    """Who does not read has 10 seconds after the first signal, but nearly none after the second."""
    with running(tmp_path) as server:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", server.port))
        for fields, counter in [("tokens=100 words=10000", "finished"), ("tokens=2 delay=3600000", "running")]:
            body = json.dumps(post(fields)).encode()
            request = head("POST", "/v1/completions", f"Content-Length: {len(body)}") + body
            if counter == "finished":
                s.sendall(request)
            else:
                other = server.raw(request)
            until(lambda: server.jobs()[counter] == 1, f"a job to be {counter}")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.lines("stopping:"), "the first signal")
        server.process.send_signal(signal.SIGTERM)
        assert read_all(other).startswith(b"HTTP/1.1 503")
        server.process.wait(PATIENCE)  # stop() would send a third signal
        server.stop()
        began, ended = [datetime.datetime.fromisoformat(server.lines(pattern)[0].split("Z ")[0])
                        for pattern in ["stopping at once$", "stopped$"]]
        assert (ended - began).total_seconds() < 8
        other.close()
        s.close()


def test_stops_with_idle_connections(tmp_path):
    with running(tmp_path) as server:
        sockets = [server.raw(data) for data in [b"", b"GET /", head("GET", "/health"), head("POST", "/tokenize", "Content-Length: 9")]]
        assert sockets[2].recv(4096)
        server.stop()
        for s in sockets:
            s.close()
