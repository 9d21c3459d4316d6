"""quire store on saved caches: keys and records by docs/FORMAT.md alone, and what each command says and leaves behind."""

import hashlib
import json
import os
import subprocess

import pytest

import quire_file
from redis_server import redis  # noqa: F401 (a fixture)
from test_saved import CODECS, save

PROGRAM = os.environ.get("QUIRE_PROGRAM", "")


def quire(*arguments, status=0):
    words = [a if isinstance(a, bytes) else str(a) for a in arguments]
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, errors="backslashreplace", timeout=600)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def report(*arguments, status=0):
    return json.loads(quire(*arguments, "--json", status=status).stdout)


pytestmark = pytest.mark.skipif(
    not os.path.exists(PROGRAM) or "store" not in subprocess.run([PROGRAM, "--help"], capture_output=True, text=True).stdout,
    reason="built without the store")

FULL, MIXED = [(0, 0)], [(0, 0), (100, 0), (90, 0)]


@pytest.fixture
def book(tmp_path):
    save(tmp_path / "book.quire", ["kc8:vt4", "kc4:vt4", ""], MIXED, 330)
    return tmp_path / "book.quire"


def keys_by_the_document(path):
    """Of a saved file's pages, in their order."""
    file = quire_file.SavedFile(path.read_bytes(), CODECS)
    root = hashlib.blake2b(digest_size=32, person=b"quire root 1")
    for section in file.sections[:2]:
        root.update(len(section).to_bytes(8, "little") + section)
    keys = [root.digest()]
    for page in range(file.length // 64):
        tokens = file.tokens[64 * page:64 * page + 64].astype("<i4").tobytes()
        keys.append(hashlib.blake2b(keys[-1] + tokens, digest_size=32, person=b"quire page 1").digest())
    return [key.hex() for key in keys[1:]]


def test_keys(book, tmp_path):
    store = tmp_path / "pages"
    imported = report("store", "import", store, book)
    keys = keys_by_the_document(book)
    assert [entry["key"] for entry in imported] == [keys[-1]] and imported[0]["added_pages"] == len(keys) == 5
    listed = report("store", "list", store, "--all")
    assert sorted(entry["key"] for entry in listed) == sorted(keys)
    by_key = {entry["key"]: entry for entry in listed}
    for i, key in enumerate(keys):
        entry = by_key[key]
        assert entry["n_tokens"] == 64 * (i + 1) and entry["end"] == (i == 4)
        assert entry["identity"] == "who made it" and entry["kv"] == "kc8:vt4 kc4:vt4 raw:raw"
        assert entry["whole"] == (i == 4)  # the windows had moved on from the others
    ends = report("store", "list", store)
    assert [entry["key"] for entry in ends] == [keys[-1]]
    text = quire("store", "list", store).stdout
    assert keys[-1][:16] in text and "320" in text and "kc8:vt4" in text


def records(store):
    """Offsets of all records in the store's file, with depth, piece and length, by their layout in the document."""
    data, found, at = (store / "data.mdb").read_bytes(), [], -1
    while (at := data.find(b"\x89QLEAF\r\n", at + 1)) >= 0:
        version, piece, depth, n_tokens = (int.from_bytes(data[at + 8 + 4 * i:at + 12 + 4 * i], "little") for i in range(4))
        payload = int.from_bytes(data[at + 24:at + 32], "little")
        assert version == 1 and n_tokens == (64 if depth else 0)
        found.append((depth, piece, at, 128 + 4 * n_tokens + payload + 16))
    return data, sorted(found)


def test_records(book, tmp_path):
    import xxhash
    store = tmp_path / "pages"
    quire("store", "import", store, book)
    data, found = records(store)
    file, keys = quire_file.SavedFile(book.read_bytes(), CODECS), keys_by_the_document(book)
    # 0 the root; every page has piece 0; group 1 (packed, window) and 2 (raw, window) have those of the last window.
    assert [(depth, piece) for depth, piece, _, _ in found] == (
        [(0, 0)] + [(1, 0), (2, 0), (3, 0)] + [(4, p) for p in (0, 3, 5)] + [(5, p) for p in (0, 3, 5)])
    for depth, piece, at, size in found:
        record = data[at:at + size]
        assert xxhash.xxh3_128(record[:-16]).digest() == record[-16:]
        if depth == 0:
            identity, layers = file.sections[:2]
            assert record[128:-16] == len(identity).to_bytes(8, "little") + len(layers).to_bytes(8, "little") + identity + layers
            continue
        assert record[32:64].hex() == keys[depth - 1] and (depth == 1 or record[64:96].hex() == keys[depth - 2])
        assert record[128:384] == file.tokens[64 * depth - 64:64 * depth].astype("<i4").tobytes()
    # Pages are the bytes that the file has: in a section of a group, sinks come first, and full pages last.
    pages = {(depth, piece): data[at + 384:at + size - 16] for depth, piece, at, size in found if depth}
    leaf = len(pages[2, 0])
    sinks = len(pages[1, 0]) - leaf
    assert leaf > 0 and sinks > 0 and pages[1, 0] == file.sections[4][-5 * leaf:][:leaf] + file.sections[4][:sinks]
    for depth in range(2, 6):
        assert pages[depth, 0] == file.sections[4][-5 * leaf:][(depth - 1) * leaf:depth * leaf]
    for piece, section in ((3, file.sections[5]), (5, file.sections[6])):
        assert len(pages[4, piece]) > 0 and section.endswith(pages[4, piece] + pages[5, piece])


def test_export_and_back(book, tmp_path):
    store, other = tmp_path / "pages", tmp_path / "other"
    key = report("store", "import", store, book)[0]["key"]
    out = tmp_path / "out.quire"
    done = report("store", "export", store, key[:8], "-o", out)
    assert done == {"file": str(out), "key": key, "n_tokens": 320, "bytes": out.stat().st_size}
    assert report("inspect", out)["sound"]
    exported, original = (quire_file.SavedFile(path.read_bytes(), CODECS) for path in (out, book))
    assert exported.length == 320 and exported.sections[:2] == original.sections[:2]
    for layer in range(3):
        for head in range(2):
            ours, theirs = exported.rows(layer, head), original.rows(layer, head)
            assert {page for part, page in ours if part == "page"} == (set(range(5)) if layer == 0 else {3, 4})
            for part in ours:
                assert part in theirs and all((a == b).all() for a, b in zip(ours[part], theirs[part]))
    again = report("store", "import", other, out)[0]
    assert again["key"] == key and again["added_pages"] == 5
    assert report("store", "import", store, out)[0]["added_pages"] == 0
    quire("store", "export", other, key, "-o", tmp_path / "twice.quire")
    assert (tmp_path / "twice.quire").read_bytes() == out.read_bytes()
    for page in keys_by_the_document(book)[:4]:
        assert "window" in quire("store", "export", store, page, "-o", tmp_path / "no", status=1).stderr
    assert not (tmp_path / "no").exists()


def test_verify_and_remove(tmp_path):
    store = tmp_path / "pages"
    for n, kv in ((330, "kc8:vt4"), (200, "kc4:vt4")):
        save(tmp_path / f"{n}", [kv], FULL, n)
    a, b = (entry["key"] for entry in report("store", "import", store, tmp_path / "330", tmp_path / "200"))
    assert report("store", "verify", store) == {"records": 10, "bad": 0, "lost": 0, "sound": True, "removed": False}
    assert "sound" in quire("store", "verify", store).stdout
    data, found = records(store)
    depth, _, at, size = found[-1]  # the last page of the longer one
    assert depth == 5
    with open(store / "data.mdb", "r+b") as file:
        file.seek(at + size // 2)
        file.write(bytes([data[at + size // 2] ^ 1]))
    assert "1 of 10" in quire("store", "verify", store, status=1).stdout
    assert report("store", "verify", store, status=1)["bad"] == 1
    assert report("store", "verify", store, "--delete")["removed"]
    assert report("store", "verify", store)["records"] == 9
    stat = report("store", "stat", store)
    assert stat["pages"] == 7 and stat["bad_records"] == 1 and stat["added_pages"] == 8
    assert stat["file_bytes"] <= stat["max_bytes"] == 8 << 30
    assert "7 pages" in quire("store", "stat", store).stdout
    assert "no page" in quire("store", "remove", store, a[:12], status=1).stderr
    assert report("store", "remove", store, b[:12])["removed_pages"] == 3
    assert report("store", "stat", store)["records"] == 5  # its root went too
    assert report("store", "remove", store, "--all")["removed_pages"] == 4
    assert report("store", "list", store) == []


def test_import_refuses(book, tmp_path):
    store = tmp_path / "pages"
    data = bytearray(book.read_bytes())
    data[-200] ^= 1
    (tmp_path / "bad").write_bytes(data)
    said = quire("store", "import", store, tmp_path / "bad", status=1).stderr
    assert "bad" in said and "damaged" in said
    assert "not a saved cache" in quire("store", "import", store, __file__, status=1).stderr
    save(tmp_path / "short", ["kc8:vt4"], FULL, 40)
    assert "no full page" in quire("store", "import", store, tmp_path / "short", status=1).stderr
    assert report("store", "stat", store)["records"] == 0
    said = quire("store", "import", store, book, "--size", "1K", status=2).stderr
    assert "--size" in said
    quire("store", "import", store, book, "--size", "64M")
    assert report("store", "stat", store)["max_bytes"] == 64 << 20


@pytest.mark.parametrize("command", ["list", "stat", "verify"])
def test_no_store(command, tmp_path):
    assert "no directory" in quire("store", command, tmp_path / "none", status=1).stderr
    assert "no store" in quire("store", command, tmp_path, status=1).stderr
    (tmp_path / "letter").write_text("dear")
    assert "other files" in quire("store", command, tmp_path, status=1).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["letter"]
    (tmp_path / "data.mdb").write_bytes(b"x" * 20000)
    assert "not the file of a store" in quire("store", command, tmp_path, status=1).stderr


@pytest.mark.parametrize("arguments, said", [
    (["store"], "usage"),
    (["store", "lst"], "list"),
    (["store", "list"], "STORE"),
    (["store", "import", "d"], "FILE"),
    (["store", "export", "d"], "KEY"),
    (["store", "export", "d", "abc"], "-o FILE"),
    (["store", "remove", "d"], "--all"),
    (["store", "remove", "d", "abc", "--all"], "--all"),
])
def test_usage(arguments, said):
    done = quire(*arguments, status=2)
    assert said in done.stderr and done.stdout == ""


@pytest.mark.parametrize("command", ["list", "stat", "verify", "import", "export", "remove"])
def test_help(command):
    assert f"usage: quire store {command} STORE" in quire("store", command, "--help").stdout


def test_redis(book, tmp_path, redis, monkeypatch):  # noqa: F811
    """The commands on a Redis server; keys and records there by the document; the password is never printed."""
    place, ask = redis.url, redis.ask
    done = quire("store", "list", place, status=1)
    assert "refuses to let this program in" in done.stderr
    done = quire("store", "list", place.replace("//", "//:wrong@"), status=1)
    assert "wrong" not in done.stderr.replace("WRONGPASS", "")
    monkeypatch.setenv("QUIRE_REDIS_PASSWORD", "hush")
    imported = report("store", "import", place, book)
    keys = keys_by_the_document(book)
    assert [entry["key"] for entry in imported] == [keys[-1]] and imported[0]["added_pages"] == 5
    names = {name.decode() for name in ask("KEYS", "*")}
    assert names >= {f"quire:1:{key}" for key in keys} and len(names - {"quire:1:counts"}) == 6
    for i, key in enumerate(keys):
        record = ask("HGET", f"quire:1:{key}", "0")
        assert record[:8] == b"\x89QLEAF\r\n" and record[32:64].hex() == key
        assert int.from_bytes(record[16:20], "little") == i + 1
    assert sorted(entry["key"] for entry in report("store", "list", place, "--all")) == sorted(keys)
    stat = report("store", "stat", place)
    assert stat["pages"] == 5 and stat["added_pages"] == 5 and stat["bytes"] > 0
    assert "hush" not in quire("store", "stat", place.replace("//", "//:hush@")).stdout
    assert report("store", "verify", place)["sound"]
    quire("store", "export", place, keys[-1][:12], "-o", tmp_path / "again.quire")
    quire("store", "import", tmp_path / "pages", book)
    quire("store", "export", tmp_path / "pages", keys[-1][:12], "-o", tmp_path / "local.quire")
    assert (tmp_path / "again.quire").read_bytes() == (tmp_path / "local.quire").read_bytes()
    assert report("store", "remove", place, "--all")["removed_pages"] == 5
    assert [name for name in ask("KEYS", "*") if name != b"quire:1:counts"] == []


def test_paths_that_are_not_text(book, tmp_path):
    """JSON is UTF-8, a path is any bytes."""
    name = os.fsencode(tmp_path / "pages") + b"-\xff\xc3\x28-\xe2\x82\xac.quire"
    shown = f"{tmp_path}/pages-\\xff\\xc3(-\u20ac.quire"
    os.rename(book, name)
    assert json.loads(quire("inspect", name, "--json").stdout)["file"] == shown
    missing = json.loads(quire("inspect", name + b"\xfe", "--json", status=1).stdout)
    assert missing["file"] == shown + "\\xfe" and not missing["sound"] and missing["reason"]
    imported = json.loads(quire("store", "import", tmp_path / "store", name, "--json").stdout)
    assert imported[0]["file"] == shown and imported[0]["added_pages"] == 5
    out = name + b"\xfd"
    exported = json.loads(quire("store", "export", tmp_path / "store", imported[0]["key"], "-o", out, "--json").stdout)
    assert exported["file"] == shown + "\\xfd" and os.path.exists(out)


def test_damaged_trees(book, tmp_path):
    """A page of a tree: named, with what to do, by every command."""
    store = tmp_path / "store"
    key = report("store", "import", store, book)[0]["key"]
    data = store / "data.mdb"
    sound = data.read_bytes()
    page = int.from_bytes(sound[40:44], "little")
    leaves = [i for i in range(2, len(sound) // page) if sound[i * page + 10:i * page + 12] == b"\x02\x00"]
    for at in (10, 12, 14, 16, 18):
        damaged = bytearray(sound)
        for leaf in leaves:
            damaged[leaf * page + at:leaf * page + at + 2] = b"\xfe\xff"
        data.write_bytes(damaged)
        for command in (("verify",), ("list",), ("stat",), ("export", key, "-o", tmp_path / "out"), ("remove", key),
                        ("import", book)):
            said = quire("store", command[0], store, *command[1:], status=1).stderr
            assert "is damaged" in said and "page " in said and "Remove the directory" in said, (at, command, said)
    data.write_bytes(sound)
    assert report("store", "verify", store)["bad"] == 0
