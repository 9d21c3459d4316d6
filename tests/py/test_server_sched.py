"""The scheduler of `quire serve` under load: every text as if it were computed alone, bit for bit."""

import os
import pathlib
import re
import subprocess

import pytest

import engine_models as models

PROGRAMS = pathlib.Path(os.environ.get("QUIRE_SERVER_PROGRAMS", ""))
PROGRAM = PROGRAMS / "server_schedule"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="built without the server")


def schedule(tmp_path, model, kv, kv_bytes=0, prefixes=4, seed=1, store=None, jobs=30):
    command = [PROGRAM, model, kv, "6", str(jobs), str(kv_bytes), str(prefixes), str(seed)]
    run = subprocess.run(command + ([store] if store else []), cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    counts = {name: int(n) for name, n in re.findall(r"(\w+) (\d+)", run.stdout)}
    assert counts["wrong"] == 0 and counts["compared"] > jobs / 2, run.stdout
    assert counts["failed"] == 0 and counts["finished"] + counts["cancelled"] == jobs, run.stdout
    assert not list(tmp_path.glob("quire-swap*")), "a swapped sequence was left behind"
    if prefixes == 0:
        assert counts["seqs"] == 0 and counts["used"] == 0, run.stdout
    return counts


@pytest.mark.parametrize("arch, kv", [("llama", "k8v4"), ("llama", "none"), ("gemma3", "k4v4")])
def test_every_page_comes_back(arch, kv, tmp_path):
    schedule(tmp_path, models.make(tmp_path / "model.gguf", arch), kv, prefixes=0)


def test_prompts_that_begin_alike_share_pages(tmp_path):
    counts = schedule(tmp_path, models.make(tmp_path / "model.gguf", "llama"), "k4v4", prefixes=8)
    assert counts["ram"] > counts["prompt"] / 10
    assert counts["ram"] + counts["computed"] == counts["prompt"] or counts["cancelled"] > 0


@pytest.mark.parametrize("spare", [200_000, 400_000])
def test_a_full_cache_swaps(spare, tmp_path):
    """A pool with room for one or two texts of the six that want to run. Its tables take different room on each
    machine, so the least budget is taken from the message of a pool that is too small."""
    model = models.make(tmp_path / "model.gguf", "llama")
    command = [PROGRAM, model, "k8v4", "6", "1", "100000", "2", "1"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    least = int(re.search(r"at least (\d+)", refused.stderr)[1])
    counts = schedule(tmp_path, model, "k8v4", kv_bytes=least + spare, prefixes=2, seed=3)
    assert counts["swaps_out"] > 0 and counts["swaps_in"] > 0


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_prefixes_from_a_store(arch, tmp_path):
    model = models.make(tmp_path / "model.gguf", arch)
    first = schedule(tmp_path, model, "k4v4", prefixes=0, seed=7, store=tmp_path / "store")
    second = schedule(tmp_path, model, "k4v4", prefixes=0, seed=7, store=tmp_path / "store")
    assert second["store"] > first["store"] and second["computed"] < first["computed"] / 2


# ---------------------------------------------------------------- turns of prompts, counted in steps

CHUNK = 256


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    """A function: [(step of arrival, tokens)] -> for each prompt the steps from its arrival to its first token."""
    model = models.make(tmp_path_factory.mktemp("turns") / "model.gguf", "llama", context=8192, layers=1)

    def run(*prompts):
        command = [PROGRAMS / "server_turns", model, str(CHUNK), *(f"{at}:{tokens}" for at, tokens in prompts)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return [int(steps) for steps in done.stdout.split()]

    return run


def test_equal_prompts_take_turns(turns):
    """Each gets whole steps until it is done, so the mean time to the first token is about half of the last one's."""
    steps = turns(*[(0, 4 * CHUNK)] * 12)
    assert steps == [4 * (i + 1) for i in range(12)]


def test_prompts_of_nearly_one_length_take_turns(turns):
    """A prompt that is only a little shorter does not overtake."""
    steps = turns(*[(0, 2048 - 100 * (i % 3)) for i in range(12)])
    assert steps == sorted(steps) and sum(steps) / len(steps) < 0.56 * steps[-1]


@pytest.mark.parametrize("at", [0, 1, 7, 20])
def test_a_short_prompt_does_not_wait_for_a_long_one(at, turns):
    """Nor for several long ones; and the long one goes on meanwhile."""
    long, other, short = turns((0, 6000), (0, 6000), (at, 100))
    assert short == 1
    assert long <= 6000 / CHUNK + 2 and other <= 12000 / CHUNK + 3


def test_a_prompt_of_medium_length_does_not_wait_for_a_long_one(turns):
    """It gets half of each step."""
    long, medium = turns((0, 6000), (0, 1000))
    assert medium <= 2 * 1000 / CHUNK + 1 and long <= 7000 / CHUNK + 2


def test_short_prompts_do_not_stop_a_long_one(turns):
    """One comes with every step, and could fill it: the long one still gets half of the rows."""
    long, *short = turns((0, 2048), *((step, CHUNK) for step in range(30)))
    assert long <= 2 * 2048 / CHUNK + 1
    assert max(short) <= 30


def test_short_prompts_wait_for_each_other_only(turns):
    """Ten of them behind two long ones: each step has room for one at least."""
    steps = turns((0, 6000), (0, 6000), *[(3, 100)] * 10)
    assert sorted(steps[2:])[-1] <= 10
