"""What the benches of attention make of their figures: crossovers, missing peers, dequantized
rows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import answer_001  # noqa: E402
import answer_003  # noqa: E402
import curves  # noqa: E402
from peer_ggml import Work  # noqa: E402

WORKS = [Work("8x2x64", ctx, 1) for ctx in (1024, 4096, 16384)]


def times(f16, split):
    return {(work, kv): ms for kv, row in (("none", f16), ("k8v4", split)) for work, ms in zip(WORKS, row)}


@pytest.mark.parametrize("split, first", [([1, 1, 1], 1024), ([3, 1, 1], 4096), ([1, 3, 1], 16384), ([1, 1, 3], None), ([2, 1, 1], 4096)])
def test_crossover_is_where_it_stays_faster(split, first):
    assert answer_001.crossover(WORKS, times([2, 2, 2], split), "k8v4", "none") == first


def test_crossover_with_a_peer_that_is_missing():
    assert answer_001.crossover(WORKS, times([2, 2, 2], [1, 1, 1]), "k8v4", "ggml f16:f16") is None


def test_missing_peers_have_a_row():
    ms = {(work, kv): 1.0 for work in WORKS for kv in ("none", "k8v4", "k4v4")}
    rows = answer_001.latency_table(WORKS, ms, {"torch": "No module named torch"}).rows
    assert [row[0] for row in rows] == ["Quire f16", "Quire K8/V4", "Quire Q4", "torch"]
    assert rows[-1][1] == "missing: No module named torch" and all(len(row) == 4 for row in rows)


class Run:
    """A stand-in for answering.Run."""

    short, threads = True, 1

    def command(self, arguments):
        return "quire"

    def progress(self, text):
        pass

    def quire(self, *arguments):
        return [{"kv": kv, "ms_best": 0.5} for kv in ("none", "k8v4", "k4v4")]


def test_a_peer_that_fails_is_missing():
    class Broken:
        def measure(self, work, kind, threads):
            raise subprocess.CalledProcessError(1, "peer", stderr="so\nout of memory\n")

    missing = {}
    ms = answer_001.measure_latency(Run(), WORKS, {"ggml": Broken()}, missing)
    assert missing == {name: "failed at 1K: out of memory" for name in ("ggml f16:f16", "ggml q8_0:q4_0")}
    assert ms[WORKS[2], "k8v4"] == 32 * 0.5 and not any(name in missing for _, name in ms)


def test_fused_without_peers_is_not_judged():
    best = {2048: {"fused": 1.0, "ways": {}, "cosine": None, "fused_extra_bytes": None, "packed_bytes": None}}
    run = Run()
    run.short = False
    assert answer_003.speed_check(run, 128, best).ok is None
    assert answer_003.memory_check(run, best).ok is None
    assert answer_003.cosine_check(run, {(128, 2048): best[2048]}).ok is None
    row = answer_003.speed_table(128, best, {"torch": "why"})
    assert row.rows[0][2] == "missing" and len(row.rows[0]) == len(row.header) and "Missing: torch: why." in row.note
    best[2048]["ways"] = {"a": {"way": "a", "ms": 0.9, "sdpa_ms": 0.5, "extra_bytes": 7}, "b": {"way": "b", "ms": 3, "sdpa_ms": 1}}
    assert answer_003.speed_check(run, 128, best).ok is False  # the fastest counts
    assert answer_003.speed_table(128, best, {}).rows[0][5] == "0.90x" and answer_003.copy_bytes(best[2048]) == 7


def test_labels_do_not_touch():
    places = curves.label_places([100, 98, 40, 103])
    assert places == [88, 73, 40, 103]


def test_dequantized_rows_give_the_same_attention():
    """Every way of dequantizing that is here, and Quire's own attention on the same pages; the
    program refuses if two ways differ."""
    build = Path(os.environ["QUIRE_LIBRARY"]).resolve().parents[1]
    if not (build / "lib").exists():
        pytest.skip("the library is not in a build's lib folder")
    command = [sys.executable, BENCH / "peer_dequant.py", "--build", build, "--shape", "4x2x64", "--rows", "70,1", "--ctx", "128",
               "-t", "1", "--seconds", "0", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    entries = json.loads(done.stdout)["results"]
    assert [(entry["rows"], entry["ctx"]) for entry in entries] == [(70, 128), (1, 128)]
    for entry in entries:  # int8 q and u8 weights: 7e-3 each (docs/TESTING.md), so the angle is below 2e-2
        assert entry["cosine"] > 0.9998
        assert {"numpy, mlx f32"} <= {way["way"] for way in entry["ways"]}
