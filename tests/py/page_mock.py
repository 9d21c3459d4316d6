"""A stand-in for `quire serve`: serves the page with the same headers, streams a written answer, and reports statistics of a
cache that does not exist but adds up. For tests of the page, and to look at it: python3 tests/py/page_mock.py --port 8080"""

import argparse
import http.server
import itertools
import json
import pathlib
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
          "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript"}
PAGE = 64  # tokens

# Everything the page renders, and markup that it must not.
ANSWER = """A **K/V cache** holds what attention needs of earlier tokens, so that a model computes each token once.

1. Every token leaves a row of K and a row of V in each layer.
2. Rows are kept in pages of 64 tokens.
3. A full page is *sealed*: its rows are packed into a few bits each.

What that saves, for 1,000 tokens of a small model:

- raw `bf16`: about 44 MiB
- packed `k4v4`: about 12 MiB

```python
def pages(length):
    sealed, rest = divmod(length, 64)
    return sealed, 1  # and one that is open
```

Markup such as <img src=x onerror="document.title='unsafe'"> and <b>tags</b> is text here. Pages that two texts have in common
are held once, which is why a second question about the same text starts sooner.
"""

LAYERS = 30
KV_HEADS, HEAD = 3, 64
BF16_TOKEN = LAYERS * KV_HEADS * HEAD * 2 * 2
CODECS = {"k4v4": ("km4", "vt4", 4.6), "k8v4": ("kc8", "vt4", 6.4), "k8v8": ("kc8", "vt8", 8.4)}


class Cache:
    """The sequences of one codec, and what their pages would take."""

    def __init__(self, kv, n_pages):
        self.kv, self.n_pages = kv, n_pages
        self.k, self.v, self.bits = CODECS[kv]
        self.page_bytes = int(PAGE * BF16_TOKEN * self.bits / 16)
        self.raw_page = PAGE * BF16_TOKEN
        self.sequences = []

    def resident(self):
        return [s for s in self.sequences if s["state"] not in ("waiting", "swapped") and s["length"]]

    def stats(self):
        held = self.resident()
        sealed = sum(s["length"] // PAGE - min(s["length"], s["cached_tokens"]) // PAGE for s in held) * self.page_bytes
        opened = sum(self.raw_page for s in held)
        last_raw = sum(self.raw_page for s in held if s["state"] == "decoding" and s["length"] >= PAGE)
        sinks = 4 * BF16_TOKEN * len(held)
        budget = self.n_pages * self.page_bytes
        used = sealed + opened + last_raw + sinks
        layer = {"k": self.k, "v": self.v, "kernel": "avx512", "bits": self.bits, "window": 0, "heads": 9,
                 "kv_heads": KV_HEADS, "raw_read": opened // LAYERS, "fallbacks": 0}
        return {"kv": self.kv, "isa": "avx512", "tokens": sum(s["length"] for s in held),
                "sequences": len(self.sequences), "bf16_token_bytes": BF16_TOKEN, "page_bytes": self.page_bytes,
                "bytes": {"budget": budget, "total": budget, "arena": budget, "sealed": sealed, "open": opened,
                          "last_raw": last_raw, "sinks": sinks, "free": max(0, budget - used)},
                "layers": [{"layer": i, "packed_read": sealed * 40 // LAYERS, **layer} for i in range(LAYERS)]}


class Mock:
    """The server's state. Tests set `refusal` to have the next chat answered by an error."""

    def __init__(self, codecs=("k4v4",), n_pages=600, key=None, rate=80.0):
        self.caches = [Cache(kv, n_pages) for kv in codecs]
        self.key, self.rate, self.refusal = key, rate, None
        self.requests = []  # bodies of the chats
        self.tiers = []
        self.store = None
        self.lock, self.jobs, self.started = threading.Lock(), itertools.count(1), time.monotonic()
        self.counts = dict.fromkeys(("submitted", "finished", "cancelled", "prompt", "cached", "generated"), 0)
        self.recent = []  # (time, "prefill" or "decode", tokens)

    def begin(self, kv, prompt_tokens, cached_tokens, max_tokens, state="decoding"):
        index = next((i for i, c in enumerate(self.caches) if c.kv == kv), 0)
        sequence = {"job": next(self.jobs), "cache": index, "choice": 0, "state": state, "prompt_tokens": prompt_tokens,
                    "cached_tokens": cached_tokens, "length": prompt_tokens if state != "waiting" else 0,
                    "max_tokens": max_tokens}
        with self.lock:
            self.caches[index].sequences.append(sequence)
            self.counts["submitted"] += 1
            self.counts["prompt"] += prompt_tokens
            self.counts["cached"] += cached_tokens
            self.recent.append((time.monotonic(), "prefill", prompt_tokens - cached_tokens))
        return sequence

    def decoded(self, sequence):
        with self.lock:
            sequence["length"] += 1
            self.counts["generated"] += 1
            self.recent.append((time.monotonic(), "decode", 1))

    def end(self, sequence, how="finished", keep=True):
        """Its prefix stays in the cache for the next question; the oldest makes room."""
        with self.lock:
            self.counts[how] += 1
            sequences = self.caches[sequence["cache"]].sequences
            sequence["state"] = "cached"
            kept = [s for s in sequences if s["state"] == "cached"]
            for old in kept[:-4] if keep else [sequence]:
                sequences.remove(old)

    def speed(self, kind):
        now = time.monotonic()
        self.recent = [r for r in self.recent if r[0] > now - 3]
        return sum(n for _, k, n in self.recent if k == kind) / 3

    def stats(self):
        with self.lock:
            c, states = self.counts, [s["state"] for cache in self.caches for s in cache.sequences]
            return {
                "version": "mock", "uptime_seconds": time.monotonic() - self.started, "exact": False,
                "model": {"name": "smollm2-135m", "architecture": "llama", "parameters": 134515008, "context": 8192,
                          "weight_bytes": 144811968},
                "jobs": {"running": states.count("decoding") + states.count("prefill"), "waiting": states.count("waiting"),
                         "swapped": states.count("swapped"), "submitted": c["submitted"], "finished": c["finished"],
                         "failed": 0, "cancelled": c["cancelled"], "refused": 0},
                "tokens": {"prompt": c["prompt"], "generated": c["generated"], "cached_ram": c["cached"],
                           "cached_store": 0, "computed": c["prompt"] - c["cached"],
                           "prefill_per_second": self.speed("prefill"), "decode_per_second": self.speed("decode")},
                "steps": {"count": c["generated"], "rows": c["generated"] * 3, "seconds": c["generated"] / 100},
                "swaps": {"out": 0, "in": 0}, "store_errors": 0,
                "caches": [cache.stats() for cache in self.caches],
                "sequences": [dict(s) for cache in self.caches for s in cache.sequences], "store": self.store,
                "tiers": self.tiers}


def pieces(text):
    """Short runs of characters, as a tokenizer would cut them."""
    return [text[i:i + 4] for i in range(0, len(text), 4)]


class Handler(http.server.BaseHTTPRequestHandler):
    """HTTP/1.0, a connection for each request: a server that was shut down answers nothing more."""

    def log_message(self, *_):
        pass

    def reply(self, status, kind, body, headers=()):
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", len(body)), *headers):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def json(self, status, value, headers=()):
        self.reply(status, "application/json", json.dumps(value).encode(), headers)

    def allowed(self):
        key = self.server.mock.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.json(401, {"error": {"message": "This key is not known here.", "type": "authentication_error"}})
        return False

    def do_GET(self):
        files = {path.name: path for path in (ROOT / "server/page").iterdir() if path.suffix in TYPES}
        name = self.path[1:] or "index.html"
        if name in files:
            self.reply(200, TYPES[files[name].suffix], files[name].read_bytes(), [("Content-Security-Policy", POLICY)])
        elif self.path == "/stats":
            if self.allowed():
                self.json(200, self.server.mock.stats())
        else:
            self.json(404, {"error": {"message": f"There is no {self.path} here."}})

    def do_POST(self):
        mock = self.server.mock
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        if mock.refusal:
            (status, message, headers), mock.refusal = mock.refusal, None
            self.json(status, {"error": {"message": message}}, headers)
            return
        mock.requests.append(body)
        prompt = sum(len(m["content"]) // 4 + 8 for m in body["messages"])
        cached = (prompt - 30) // PAGE * PAGE if len(body["messages"]) > 2 else 0
        sequence = mock.begin(body.get("kv"), prompt, max(0, cached), body.get("max_tokens", 0))
        try:
            self.stream(sequence, body)
            mock.end(sequence)
        except OSError:  # the reader went away
            mock.end(sequence, "cancelled")

    def stream(self, sequence, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

        def event(value):
            self.wfile.write(b"data: " + json.dumps({"object": "chat.completion.chunk", **value}).encode() + b"\n\n")
            self.wfile.flush()

        limit, made, finish = body.get("max_tokens", 10 ** 6), 0, "stop"
        event({"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})
        for piece in pieces(ANSWER * (5 if "long" in body["messages"][-1]["content"] else 1)):
            if made == limit:
                finish = "length"
                break
            event({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
            made += 1
            self.server.mock.decoded(sequence)
            time.sleep(1 / self.server.mock.rate)
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        event({"choices": [], "usage": {"prompt_tokens": sequence["prompt_tokens"], "completion_tokens": made,
                                        "prompt_tokens_details": {"cached_tokens": sequence["cached_tokens"]}}})
        self.wfile.write(b"data: [DONE]\n\n")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # browsers drop connections


def start(mock, port=0):
    """Serves in the background; returns the server, whose address ends in the port that was taken."""
    server = Server(("127.0.0.1", port), Handler)
    server.mock = mock
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def crowd(mock, n):
    """Clients that come and go, for something to look at: some share a prefix, some wait."""
    def one(i):
        time.sleep(i * .7)
        for turn in itertools.count():
            kv = mock.caches[(i + turn) % len(mock.caches)].kv
            prompt = 300 + (i * 977 + turn * 613) % 2600
            sequence = mock.begin(kv, prompt, 256 if i % 3 else 0, 400)
            for _ in range(100 + (i * 37 + turn * 53) % 300):
                mock.decoded(sequence)
                time.sleep(.04)
            mock.end(sequence, keep=i % 4 == 0)
            time.sleep(1 + i % 3)
    for i in range(n):
        threading.Thread(target=one, args=(i,), daemon=True).start()
    if n:
        mock.begin(mock.caches[0].kv, 4100, 0, 300, "waiting")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--kv", default="k4v4", help="codecs, separated by commas: k4v4,k8v4")
    parser.add_argument("--pages", type=int, default=600)
    parser.add_argument("--key")
    parser.add_argument("--crowd", type=int, default=0, help="clients that chat in the background")
    options = parser.parse_args()
    state = Mock(options.kv.split(","), options.pages, options.key)
    crowd(state, options.crowd)
    print(f"http://127.0.0.1:{start(state, options.port).server_address[1]}/", flush=True)
    threading.Event().wait()
