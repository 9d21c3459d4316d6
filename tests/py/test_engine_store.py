"""quire run --store: the text, and every byte of its cache, of a run without a store."""

import ctypes.util
import fcntl
import json
import os
import subprocess
import sys

import pytest

import engine_models as models
from redis_server import redis  # noqa: F401 (a fixture)
from test_engine import fetched
from test_engine_cli import LONG, PROGRAM, bytewise, quire

pytestmark = pytest.mark.skipif(
    not os.path.exists(PROGRAM) or not os.environ.get("QUIRE_ENGINE_PROGRAMS")
    or "store" not in subprocess.run([PROGRAM, "--help"], capture_output=True, text=True).stdout,
    reason="built without the engine or the store")

MODES = [(), ("--kv", "none"), ("--kv", "k4v4"), ("--kv", "k4v4", "--kv-windowed", "same"),
         ("--kv", "k8v4", "--max-kv-size", 150, "--keep", 4)]


def outcome(folder, name, *arguments, threads=1):
    """Text, bytes of the saved cache, report."""
    file = folder / name
    done = quire("run", "--temp", 0, "--ignore-end", "--json", "-t", threads, "--save", file, *arguments)
    return bytewise(done.stdout), file.read_bytes(), json.loads(done.stderr)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gemma4"])
@pytest.mark.parametrize("more", MODES)
def test_as_if_computed(arch, more, tmp_path):
    model = models.make(tmp_path / "model.gguf", arch)
    common = ("-m", model, "-n", 40, "--ctx", 1200, *more)
    words = LONG.split()
    prompts = {"whole": LONG, "longer": LONG + " w5 w6", "branch": " ".join(words[:90]) + " w1 w1 w2",
               "short": " ".join(words[:40]), "other": "x" + LONG}
    cold = {name: outcome(tmp_path, "cold", *common, "-p", prompt) for name, prompt in prompts.items()}
    expected = {"whole": (0, None), "longer": (700, None), "branch": (400, 600), "short": (190, 300), "other": (0, 1)}
    store = tmp_path / "pages"
    for name in prompts:
        warm = outcome(tmp_path, "warm", *common, "-p", prompts[name], "--store", store)
        assert warm[:2] == cold[name][:2], name
        n, (least, most) = warm[2]["n_from_store"], expected[name]
        assert n % 64 == 0 and n >= least and (most is None or n < most), (name, n)
        assert warm[2]["n_prompt"] + n == cold[name][2]["n_prompt"]
    for name, prompt in prompts.items():  # all of it is there now
        warm = outcome(tmp_path, "warm", *common, "-p", prompt, "--store", store)
        assert warm[:2] == cold[name][:2] and warm[2]["store_added_pages"] == 0
        assert warm[2]["n_from_store"] == (cold[name][2]["n_prompt"] - 1) // 64 * 64
    assert json.loads(quire("store", "verify", store, "--json").stdout)["bad"] == 0


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("writes, reads", [(2, 1), (1, 3)])
def test_threads(arch, writes, reads, tmp_path):
    """Pages are the same, whoever made them. (Few tokens: many threads on few cores wait for each other.)"""
    model = models.make(tmp_path / "model.gguf", arch)
    common = ("-m", model, "-n", 1, "--kv", "k4v4")
    cold = outcome(tmp_path, "cold", *common, "-p", LONG + " w5")
    outcome(tmp_path, "other", *common, "-p", LONG, "--store", tmp_path / "pages", threads=writes)
    warm = outcome(tmp_path, "warm", *common, "-p", LONG + " w5", "--store", tmp_path / "pages", threads=reads)
    assert warm[:2] == cold[:2] and warm[2]["n_from_store"] > 700


def test_smollm2(tmp_path):
    model = fetched("smollm2")
    start = "The history of printing begins long before the press. " * 14
    common = ("-m", model, "-n", 12, "--kv", "k4v4")
    store = tmp_path / "pages"
    first = outcome(tmp_path, "first", *common, "-p", start + "In China", "--store", store)
    assert first[2]["n_from_store"] == 0 and first[2]["store_added_pages"] >= 2
    prompt = start + "In Mainz, a goldsmith"
    cold = outcome(tmp_path, "cold", *common, "-p", prompt)
    warm = outcome(tmp_path, "warm", *common, "-p", prompt, "--store", store)
    assert warm[:2] == cold[:2] and warm[2]["n_from_store"] >= 128
    assert warm[2]["n_from_store"] == warm[2]["n_restored"]
    said = quire("run", *common, "-p", prompt, "--store", store, "-t", 1).stderr
    assert f"store    {store}: {warm[2]['n_from_store']} tokens came from it" in said
    chat = quire("chat", "-m", model, "-n", 4, "--temp", 0, "-t", 1, "--system", start, "--store", store, input="Hello\nAgain\n")
    assert "store    " in chat.stderr
    again = quire("chat", "-m", model, "-n", 4, "--temp", 0, "-t", 1, "--system", start, "--store", store, input="Hello\nAgain\n")
    assert again.stdout == chat.stdout and " 0 tokens came from it" in chat.stderr
    assert " 0 tokens came from it" not in again.stderr and " 0 pages" in again.stderr


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_redis_and_tiers(arch, tmp_path, redis, monkeypatch):  # noqa: F811
    """Two machines, so to speak, that share nothing but Redis; then without it."""
    place, ask = redis.url, redis.ask
    monkeypatch.setenv("QUIRE_REDIS_PASSWORD", "hush")
    model = models.make(tmp_path / "model.gguf", arch)
    common = ("-m", model, "-n", 20, "--kv", "k4v4")
    cold = outcome(tmp_path, "cold", *common, "-p", LONG + " w5")
    first = outcome(tmp_path, "first", *common, "-p", LONG, "--store", f"mem:16M,{tmp_path / 'a'},{place}?timeout=20000")
    assert first[2]["n_from_store"] == 0 and first[2]["store_added_pages"] > 10
    for store in (f"mem:16M,{tmp_path / 'b'},{place}?timeout=20000", place + "?timeout=20000", tmp_path / "a", tmp_path / "b"):
        warm = outcome(tmp_path, "warm", *common, "-p", LONG + " w5", "--store", store)
        assert warm[:2] == cold[:2] and warm[2]["n_from_store"] > 700, store
    said = quire("run", *common, "-t", 1, "-p", LONG, "--store", place.replace("//", "//default:hush@")).stderr
    assert f"store    {place}: " in said and "hush" not in said
    ask("SHUTDOWN", "NOSAVE")
    done = quire("run", "--temp", 0, "--ignore-end", *common, "-t", 1, "-p", LONG + " w5", "--store", f"mem:16M,{place}")
    assert bytewise(done.stdout) == cold[0]
    assert done.stderr.count("the store goes on without " + place) == 1 and "cannot be reached" in done.stderr


def test_others_find_nothing(tmp_path):
    """What changes a single bit of the pages makes another text of it."""
    model = models.make(tmp_path / "model.gguf", "llama")
    store = tmp_path / "pages"

    def found(*arguments, of=model):
        return outcome(tmp_path, "saved", "-m", of, "-p", LONG, "-n", 1, "--store", store, *arguments)[2]["n_from_store"]

    ways = [("--kv", "k4v4"), ("--kv", "k4v4", "--plain-rounding"), ("--kv", "k8v4"), ("--kv", "k8v4", "--sinks", 0),
            ("--kv", "k8v4", "--raw", "bf16"), ("--kv", "k8v4", "--weights", "file"), ("--kv", "k8v4", "--weights", "f32"),
            ("--kv", "k8v4", "--max-kv-size", 400), ("--kv", "k8v4", "--kv-layers", "0=k8v8")]
    for way in ways:
        assert found(*way) == 0, way
    for way in ways:
        assert found(*way) > 700, way
    assert found("--kv", "k8v4", of=models.make(tmp_path / "other.gguf", "llama", seed=2)) == 0
    assert found("--kv", "k8v4", of=models.make(tmp_path / "rope.gguf", "llama", rope_base=20000.0)) == 0
    assert found("--kv", "k8v4", of=models.make(tmp_path / "again.gguf", "llama")) > 700  # what a file is called is nothing


def test_generated_pages(tmp_path):
    """Tokens that were decoded one at a time are not what a prompt gives: they are kept only if steps were exact."""
    model = models.make(tmp_path / "model.gguf", "llama")
    store = tmp_path / "pages"
    common = ("-m", model, "-p", " ".join(LONG.split()[:30]), "-n", 150, "--ctx", 600, "--store", store)
    plain = outcome(tmp_path, "saved", *common)[2]
    assert plain["store_added_pages"] == plain["n_prompt"] // 64
    exact = outcome(tmp_path, "saved", *common, "--exact")[2]
    assert exact["store_added_pages"] + plain["store_added_pages"] == (plain["n_prompt"] + 149) // 64


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_files_and_stores(arch, tmp_path):
    """A saved prompt, imported, is found; what is stored, exported, is loaded: the text is the same."""
    model = models.make(tmp_path / "model.gguf", arch)
    common = ("-m", model, "-n", 20, "--kv", "k4v4")
    for n_words in range(150, 100, -1):  # until the window (75) at its end still sees what it saw when the last page was full
        text = " ".join(LONG.split()[:n_words])
        quire("run", "-m", model, "--kv", "k4v4", "-p", text, "-n", 0, "-t", 1, "--save", tmp_path / "prompt")
        if json.loads(quire("inspect", tmp_path / "prompt", "--json").stdout)["length"] % 64 < 10:
            break
    cold = outcome(tmp_path, "cold", *common, "-p", text + " w5")
    store = tmp_path / "pages"
    key = json.loads(quire("store", "import", store, tmp_path / "prompt", "--json").stdout)[0]["key"]
    warm = outcome(tmp_path, "warm", *common, "-p", text + " w5", "--store", store)
    assert warm[:2] == cold[:2] and warm[2]["n_from_store"] > 500
    out = tmp_path / "out"
    quire("store", "export", store, key[:20], "-o", out)
    assert json.loads(quire("inspect", out, "--json").stdout)["sound"]
    loaded = outcome(tmp_path, "loaded", *common, "-p", text + " w5", "--load", out)
    assert loaded[:2] == cold[:2] and loaded[2]["n_restored"] == warm[2]["n_from_store"]


def test_caches_with_a_history_stay_out(tmp_path):
    """A cache of two bits, packed again with eight, is not what computing with eight gives: a store does not take it."""
    model, store = models.make(tmp_path / "model.gguf", "llama"), tmp_path / "pages"
    text = " ".join(LONG.split()[:60])
    quire("run", "-m", model, "-t", 1, "--kv", "kc2:vt2", "-p", text, "-n", 4, "--ignore-end", "--save", tmp_path / "a")
    quire("run", "-m", model, "-t", 1, "--kv", "k8v8", "--load", tmp_path / "a", "--reseal", "-n", 4, "--ignore-end",
          "--save", tmp_path / "b")
    said = json.loads(quire("inspect", tmp_path / "b", "--json").stdout)
    assert said["history"] == ["resealed"] and said["exact_tokens"] == 0 and said["sound"]
    assert "resealed; no token is as it was computed" in quire("inspect", tmp_path / "b").stdout
    refused = quire("store", "import", store, tmp_path / "b", status=1).stderr
    assert "was resealed" in refused and "QUIRE" not in refused
    assert json.loads(quire("store", "stat", store, "--json").stdout)["records"] == 0
    common = ("-m", model, "--kv", "k8v8", "-p", text, "-n", 20)
    cold, warm = outcome(tmp_path, "cold", *common), outcome(tmp_path, "warm", *common, "--store", store)
    assert warm[:2] == cold[:2] and warm[2]["n_from_store"] == 0


def test_tokens_that_left_a_window_stay_lost(tmp_path):
    """Without raw sinks page 0 must hold the kept tokens; packed again, it has them and nothing else of the page."""
    model = models.make(tmp_path / "model.gguf", "llama")
    words = LONG.split()
    common = ("-m", model, "--kv", "k8v8", "--max-kv-size", 132, "--keep", 4, "-n", 20)
    outcome(tmp_path, "saved", *common, "-p", " ".join(words[:60]))
    parts = " ".join(words[:20] + words[100:110])  # from the saved text, after a page or two
    cold = outcome(tmp_path, "cold", *common, "--sinks", 0, "-p", parts)
    loaded = outcome(tmp_path, "loaded", *common, "--sinks", 0, "-p", parts, "--load", tmp_path / "saved", "--reseal")
    assert loaded[:2] == cold[:2] and loaded[2]["n_restored"] == 0


@pytest.mark.parametrize("places", ["redis://:se,cret@127.0.0.1:1", "mem:1M,redis://me:se,cr,et@127.0.0.1:1/2",
                                    "redis://a,rediss://:se,cr@et@b"])
def test_a_comma_in_a_password_is_refused(places, tmp_path):
    """It would split the URL: the rest of the password would be a directory, in sight of everybody."""
    said = quire("run", "-m", "none.gguf", "-p", "x", "--store", places, status=2, cwd=tmp_path).stderr
    assert "%2C" in said and not any(part in said for part in ("se,", "cret", "cr@", "et@"))
    assert not list(tmp_path.iterdir())


def test_damage_costs_time_alone(tmp_path):
    model = models.make(tmp_path / "model.gguf", "gemma3")
    store = tmp_path / "pages"
    common = ("-m", model, "-n", 20, "-p", LONG)
    cold = outcome(tmp_path, "cold", *common)
    outcome(tmp_path, "warm", *common, "--store", store)
    data = bytearray((store / "data.mdb").read_bytes())
    n, at = 0, -1
    while (at := data.find(b"\x89QLEAF\r\n", at + 1)) >= 0:
        n += 1
        if n % 3 == 0:
            data[at + 600] ^= 16  # in the payload
    (store / "data.mdb").write_bytes(data)
    warm = outcome(tmp_path, "warm", *common, "--store", store)
    assert warm[:2] == cold[:2] and warm[2]["n_from_store"] < 700
    stat = json.loads(quire("store", "stat", store, "--json").stdout)
    assert stat["bad_records"] > 0
    warm = outcome(tmp_path, "warm", *common, "--store", store)
    assert warm[:2] == cold[:2] and warm[2]["n_from_store"] > 700


def test_errors(tmp_path):
    model = models.make(tmp_path / "model.gguf", "llama")
    common = ("run", "-m", model, "-p", LONG, "-n", 4, "-t", 1, "--temp", 0)
    (tmp_path / "letter").write_text("dear")
    assert "other files" in quire(*common, "--store", tmp_path, status=1).stderr
    assert "not a directory" in quire(*common, "--store", model, status=1).stderr
    assert "cannot be given together" in quire(*common, "--store", tmp_path / "s", "--load", model, status=2).stderr
    # A limit that the text does not fit into: said, and the text goes on.
    common += ("--kv", "none")
    cold = quire(*common)
    small = quire(*common, "--store", tmp_path / "small", "--store-size", "1M")
    assert "limit" in small.stderr and "the rest of this text is not added" in small.stderr and small.stdout == cold.stdout != ""


READER = """
import ctypes, sys
lmdb = ctypes.CDLL(sys.argv[1])
env, txn = ctypes.c_void_p(), ctypes.c_void_p()
assert lmdb.mdb_env_create(ctypes.byref(env)) == 0
assert lmdb.mdb_env_open(env, sys.argv[2].encode(), 0x20000, 0o600) == 0  # MDB_RDONLY
assert lmdb.mdb_txn_begin(env, None, 0x20000, ctypes.byref(txn)) == 0
print("reading", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not ctypes.util.find_library("lmdb"), reason="not here: LMDB is no shared library")
def test_a_reader_holds_the_room(tmp_path):
    """What cannot be put because somebody reads is put when they are done."""
    model = models.make(tmp_path / "model.gguf", "llama")
    store = tmp_path / "pages"
    common = ("run", "-m", model, "--temp", 0, "--ignore-end", "-t", 1, "--kv", "k4v4")
    for i in range(12):  # full, and every page has been used before
        quire(*common, "-n", 1, "-p", f"{i} " + LONG, "--store", store, "--store-size", "1M")
    assert json.loads(quire("store", "stat", store, "--json").stdout)["evicted_pages"] > 0
    reader = subprocess.Popen([sys.executable, "-c", READER, ctypes.util.find_library("lmdb"), store],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout.readline() == "reading\n"
    said = ""
    for i in range(12):  # until the room that was left for the copies of LMDB is used up
        said = quire(*common, "-n", 1, "-p", f"x{i} " + LONG, "--store", store).stderr
        if "store now" in said:
            break
    assert f"process {reader.pid} is reading" in said and "Try again later" in said
    # A run that has computed its prompt and waits: the pipe for its text is full.
    text, out = os.pipe()
    assert os.write(out, bytes(fcntl.fcntl(out, fcntl.F_GETPIPE_SZ))) > 0
    program = [PROGRAM, *map(str, common), "-n", "20", "-p", "y " + LONG, "--store", str(store), "--json"]
    with subprocess.Popen(program, stdout=out, stderr=subprocess.PIPE) as run, open(text, "rb") as text:
        os.close(out)
        said = run.stderr.readline().decode()
        assert "cannot add pages to the store; will try again later" in said, said
        reader.stdin.write("\n")
        reader.stdin.close()
        assert reader.wait() == 0
        text.read()
        report = json.loads(run.stderr.read())
        assert run.wait() == 0
    assert report["store_added_pages"] > 5
    assert json.loads(quire("store", "verify", store, "--json").stdout)["bad"] == 0
