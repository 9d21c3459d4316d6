"""The commands that run a model: what goes to stdout and stderr, the same text in every way of making it, JSON keys."""

import json
import os
import re
import signal
import struct
import subprocess
import time

import pytest
import xxhash

import engine_models as models
from conftest import full_sweep
from test_cli import bad_outputs
from test_engine import TEXT, fetched

PROGRAM = os.environ.get("QUIRE_PROGRAM", "")
pytestmark = pytest.mark.skipif(
    not os.path.exists(PROGRAM) or not os.environ.get("QUIRE_ENGINE_PROGRAMS"), reason="built without the engine")


def quire(*arguments, status=0, **options):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=2400,
                          errors="backslashreplace", **options)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def text_of(*arguments):
    return quire("run", "--quiet", "-t", 1, *arguments).stdout


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return models.make(tmp_path_factory.mktemp("cli") / "tiny.gguf", "llama")


@pytest.fixture(scope="module")
def smollm2():
    return fetched("smollm2")


def test_version_names_the_architectures():
    assert json.loads(quire("version", "--json").stdout)["models"] == list(models.SHAPES)
    assert f"models       {' '.join(models.SHAPES)}\n" in quire("version").stdout


def test_run_separates_text_and_report(smollm2):
    done = quire("run", "-m", smollm2, "-p", "The capital of France is", "-n", 8, "--temp", 0, "-t", 1)
    assert "Paris" in done.stdout and "tokens/s" not in done.stdout
    # The text alone, without an end of line that the model did not write: more of the text begins with all of it.
    longer = text_of("-m", smollm2, "-p", "The capital of France is", "-n", 12, "--temp", 0)
    assert longer.startswith(done.stdout) and len(longer) > len(done.stdout)
    for word in ("prefill  5 tokens", "decode   8 tokens", "in bf16", "kernels", "fallbacks 0", "kc8:vt4"):
        assert word in done.stderr, done.stderr


def test_run_json_report(smollm2):
    done = quire("run", "-m", smollm2, "-p", "One, two,", "-n", 4, "--temp", 0, "-t", 1, "--json", "--kv", "k4v4")
    report = json.loads(done.stderr)
    assert report["n_generated"] == 4 and report["fallbacks"] == 0 and report["shadow_bytes"] == 0
    assert report["kv_bytes"] > 0 and report["kv_bytes_bf16"] > 0 and report["tg_tps"] > 0


def test_quiet_does_not_silence_json(tiny):
    common = ("run", "-m", tiny, "-p", "w1 w2", "-n", 4, "-t", 1, "--temp", 0, "--ctx", 100000, "--quiet")
    assert quire(*common).stderr == ""
    assert json.loads(quire(*common, "--json").stderr)["n_prompt"] > 0


def test_prompt_from_file_and_stdin(smollm2, tmp_path):
    prompt = "Once upon a time"
    (tmp_path / "prompt").write_text(prompt)
    common = ("-m", smollm2, "-n", 12, "--temp", 0)
    expected = text_of(*common, "-p", prompt)
    assert text_of(*common, "-f", tmp_path / "prompt") == expected
    done = quire("run", "--quiet", "-t", 1, *common, "-f", "-", input=prompt)
    assert done.stdout == expected


@pytest.mark.parametrize("kv", ["none", "k8v4", "tq4"])
def test_same_text_from_any_number_of_threads(tiny, kv):
    """Three threads take fewer steps: on two processors each wait for each other costs a time slice."""
    def text(threads, n):
        return quire("run", "--quiet", "-m", tiny, "-p", "w1 w2 w3 w4", "--temp", 0.9, "--seed", 7, "--kv", kv, "--ignore-end",
                     "-t", threads, "-n", n).stdout

    one, three = text(1, 24), text(3, 24 if full_sweep() else 6)
    assert len(one) > 20 and text(2, 24) == one
    assert bytewise(one).startswith(bytewise(three)) and len(three) > 5


@pytest.mark.parametrize("temp", [0, 0.7])
def test_draft_changes_nothing(smollm2, temp):
    """A text that repeats itself: guesses are made, some are right, and the text stays the same."""
    common = ("run", "-m", smollm2, "-p", "a b c d e f g h a b c d e f g h a b c d", "-n", 40, "--temp", temp, "-t", 1,
              "--exact", "--json", "--kv", "k8v4")
    plain, drafted = quire(*common), quire(*common, "--draft", "lookup")
    assert plain.stdout == drafted.stdout
    report = json.loads(drafted.stderr)
    assert report["n_drafted"] >= report["n_accepted"] > 0


def repeated(text):
    """Share of the groups of four words that were there before; none in a text of fewer words."""
    words = text.split()
    groups = [tuple(words[i:i + 4]) for i in range(len(words) - 3)]
    return 1 - len(set(groups)) / len(groups) if groups else 0


LOOP = ("-p", "a b c d e f g h a b c d e f g h a b c d", "-n", 60, "--temp", 0)


@pytest.fixture(scope="module")
def loop(smollm2):
    return text_of("-m", smollm2, *LOOP)


@pytest.fixture(scope="module")
def start_of_loop(smollm2, loop):
    start = text_of("-m", smollm2, *LOOP[:2], "-n", 4, "--temp", 0)
    assert start and loop.startswith(start)
    return start


PENALTIES = [("--repeat-penalty", 1.2), ("--frequency-penalty", 3), ("--dry-multiplier", 0.8)]
OFF = ("--repeat-last-n", 0, "--dry-penalty-last-n", 0)


@pytest.mark.parametrize("options", PENALTIES)
def test_penalties_end_a_loop(smollm2, loop, start_of_loop, options):
    """Greedy, this text repeats itself for ever. The prompt counts: a fresh text would not know of the loop yet."""
    assert repeated(loop) > 0.8
    penalized = text_of("-m", smollm2, *LOOP, *options)
    assert repeated(penalized) < 0.3
    assert not penalized.startswith(start_of_loop)
    if full_sweep():
        assert text_of("-m", smollm2, *LOOP, *options, *OFF) == loop


def test_penalties_that_look_back_at_nothing(smollm2, loop):
    """Each of them alone in test-all."""
    assert text_of("-m", smollm2, *LOOP, *(word for options in PENALTIES for word in options), *OFF) == loop


def test_draft_with_penalties(smollm2):
    """Penalties see the tokens of the text, and not those that were guessed wrong."""
    common = ("run", "-m", smollm2, *LOOP, "-t", 1, "--exact", "--json", "--dry-multiplier", 0.3, "--frequency-penalty", 0.2)
    plain, drafted = quire(*common), quire(*common, "--draft", "lookup")
    assert plain.stdout == drafted.stdout
    report = json.loads(drafted.stderr)
    assert report["n_drafted"] > report["n_accepted"] > 0


def test_dry_breakers(smollm2, loop):
    """A breaker that is in every repetition leaves nothing to penalize; without breakers there is."""
    strong = ("--dry-multiplier", 5, "--dry-allowed-length", 1)
    assert text_of("-m", smollm2, *LOOP, *strong, "--dry-breakers", "none") != loop
    assert text_of("-m", smollm2, *LOOP, *strong, "--dry-breakers", "a,b,c,d,e,f,g,h") == loop


def test_grammar(smollm2):
    text = text_of("-m", smollm2, "-p", "Is water wet?", "-n", 20, "--grammar", 'root ::= " yes." | " no."')
    assert text in (" yes.", " no.")


def test_a_finished_text_is_not_continued(smollm2, tmp_path):
    """Where the grammar ends, the model does. Saved and loaded, the text has ended; --ignore-end goes on all the same."""
    common, file = ("-m", smollm2, "--temp", 0), tmp_path / "saved"
    grammar = ("--grammar", 'root ::= " yes." | " no."')
    text_of(*common, "-p", "Is water wet?", "-n", 20, *grammar, "--save", file)
    assert text_of(*common, "-n", 5, "--load", file, "--save", file) == ""
    assert text_of(*common, "-n", 5, "--load", file, "--ignore-end") != ""
    refused = quire("run", *common, "-n", 5, "--load", file, *grammar, status=2)
    assert "grammar would begin again" in refused.stderr


def test_bounded_cache(smollm2):
    """200 tokens in a cache of 100: packed, and no larger than the bound and the pages at its ends."""
    done = quire("run", "-m", smollm2, "-p", "Once upon a time", "-n", 200, "--ignore-end", "--temp", 0, "-t", 1, "--json",
                 "--kv", "k4v4", "--max-kv-size", 100, "--keep", 4)
    report = json.loads(done.stderr)
    assert report["n_generated"] == 200
    token_bf16 = 30 * 3 * (64 + 64) * 2
    assert report["kv_bytes_bf16"] == 100 * token_bf16
    assert report["kv_bytes"] < (100 + 3 * 64) * token_bf16


def test_policy_by_layer(smollm2):
    done = quire("run", "-m", smollm2, "-p", "One, two,", "-n", 2, "-t", 1, "--kv", "k4v4", "--kv-layers",
                 "0-1=none,29=kc8:vt8")
    lines = [line.split() for line in done.stderr.splitlines()]
    assert [(line[0], line[1]) for line in lines if len(line) > 6 and ":" in line[1] and line[0].isdigit()] == \
        [("2", "raw:raw"), ("27", "km4:vt4"), ("1", "kc8:vt8")]


def test_chat_computes_what_is_new(smollm2):
    done = quire("chat", "-m", smollm2, "-n", 12, "--temp", 0, "-t", 1, input="Hello!\nThank you.\n")
    assert done.stdout.count("\n") >= 2 and "prefill" not in done.stdout
    first = done.stderr.split("prefill")[1].split()[0]
    again = quire("run", "-m", smollm2, "--chat", "-p", "Hello!", "-n", 1, "-t", 1, "--json")
    assert int(first) < 2 * json.loads(again.stderr)["n_prompt"] + 12


def test_interrupt_stops_cleanly(smollm2):
    process = subprocess.Popen([PROGRAM, "run", "-m", smollm2, "-p", "Once upon a time", "-n", "100000", "--ignore-end",
                                "-t", "1", "--max-kv-size", "256", "--ctx", "200000"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    _, report = process.communicate(timeout=60)
    assert process.returncode == 130 and b"tokens/s" in report and b"fallbacks 0" in report


def test_closed_descriptors_cost_no_store(tiny, tmp_path):
    """The store would become standard output or error, and be written over."""
    quire("run", "-m", tiny, "-p", LONG, "-n", 1, "-t", 1, "--store", tmp_path / "store")
    for closed in ("<&- 2>&-", "<&- >&- 2>&-"):
        subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", PROGRAM, "run", "-m", tiny, "-p", LONG, "-n", "9", "-t", "1", "--store",
                        tmp_path / "store"], stdout=subprocess.PIPE, timeout=300)
        assert "sound" in quire("store", "verify", tmp_path / "store").stdout
    assert "Bad file descriptor" in subprocess.run(["sh", "-c", '"$@" <&-', "sh", PROGRAM, "run", "-m", tiny, "-f", "-"],
                                                   stderr=subprocess.PIPE, text=True).stderr


def test_a_full_context_is_said(tiny):
    common = ("run", "-m", tiny, "-p", "ab", "-n", 100, "--ctx", 9, "--ignore-end", "--temp", 0, "-t", 1)
    assert "the context of 9 tokens is full" in quire(*common).stderr
    report = json.loads(quire(*common, "--json").stderr)
    assert report["context_full"] and not report["ended"]
    done = quire("run", "-m", tiny, "-p", "ab", "-n", 1, "-t", 1, "--json")
    assert json.loads(done.stderr)["tg_tps"] == 0, "the first token comes from the prompt's last step"


def test_a_full_cache_keeps_what_there_is(smollm2, tmp_path):
    model = ("-m", smollm2, "--ctx", 1024, "--kv", "k8v8", "--temp", 0, "-t", 2)
    small = quire("run", *model, "--kv-bytes", "1M", "-p", "x", "-n", 1, status=1).stderr
    least = re.search(r"at least (\d+)", small)[1]  # which depends on the processor: workers need room, too
    common = (*model, "--kv-bytes", least)
    done = quire("run", *common, "-p", "Once upon a time", "-n", 400, "--ignore-end", "--save", tmp_path / "saved", status=1)
    assert "out of pages" in done.stderr and "decode" in done.stderr
    assert done.stdout.startswith(text_of("-m", smollm2, "--kv", "k8v8", "--temp", 0, "-p", "Once upon a time", "-n", 20))
    assert "restored" in quire("run", "-m", smollm2, "--kv", "k8v8", "--load", tmp_path / "saved", "-n", 1, "-t", 1).stderr
    talk = quire("chat", *common, "-n", 4, input=f"{'one two three ' * 200}\n/reset\nHello\n")
    assert "/reset starts a new one" in talk.stderr and talk.stdout.strip()


@pytest.mark.parametrize("arguments, said", [
    (("run", "-p", "x"), "no model was given"),
    (("probe", "-m", "TINY", "--calibration", "/nowhere/x"), "no directory '/nowhere'"),
    (("probe", "-m", "TINY", "--calibration", "x", "--json"), "leave out --json"),
    (("run", "-m", "nowhere.gguf", "-p", "x"), "nowhere.gguf"),
    (("run", "-m", "TINY"), "no prompt was given"),
    (("run", "-m", "TINY", "-p", "x", "-f", "y"), "cannot be given together"),
    (("run", "-m", "TINY", "-p", "x", "--kv", "k9v9"), "k9v9"),
    (("run", "-m", "TINY", "-p", "x", "--kv-layers", "7=none"), "0 to 2"),
    (("run", "-m", "TINY", "-p", "x", "--grammar", "root ::= ("), "grammar"),
    (("run", "-m", "TINY", "-p", "x", "--grammar-file", "/dev/null"), "grammar is empty"),
    (("run", "-m", "TINY", "-p", "x", "--grammar", r"root ::= [^\x00-\U7FFFFFFF]"), "grammar"),
    (("run", "-m", "TINY", "-p", "x", "--temp", "0", "--grammar", r"root ::= [^\x00-\U7FFFFFFF]"), "grammar"),
    (("run", "-m", "TINY", "-p", "x", "--system", "be kind"), "--system needs --chat"),
    (("run", "-m", "TINY", "-p", "x", "--repeat-penalty", "0"), "--repeat-penalty"),
    (("run", "-m", "TINY", "-p", "x", "--dry-base", "0.5"), "--dry-base"),
    (("run", "-m", "TINY", "-p", "x", "--dry-penalty-last-n", "-1"), "--dry-penalty-last-n"),
    (("run", "-m", "TINY", "-p", "x", "--dry-breakers", "a,,b"), "--dry-breakers 'a,,b'"),
    (("run", "-m", "TINY", "-p", "x", "--dry-breakers", "a\\x"), "only escapes"),
    (("run", "-m", "TINY", "-p", "x", "--dry-breakers", "a" * 41), "41 bytes"),
    (("run", "-m", "TINY", "-p", "x", "--reseal"), "--reseal needs --load"),
    (("run", "-m", "TINY", "-p", "x", "--store-size", "1G"), "--store-size needs --store"),
    (("bench", "model", "-m", "TINY", "--kv", "none,k9v9"), "k9v9"),
    (("bench", "model", "-m", "TINY", "--depth", "100,-1"), "--depth: '-1'"),
    (("bench", "model", "-m", "TINY", "--depth", "100,"), "--depth: ''"),
    (("bench", "model", "-m", "TINY", "--depth", ",".join(["1"] * 65)), "at most 64 sequences"),
    (("run", "-m", "TINY", "-p", "x", "--ctx", "1"), "does not fit"),
    (("chat", "-m", "TINY"), "chat template"),
    (("eval", "kld", "-m", "TINY"), "--text"),
    (("eval", "niah", "-m", "TINY", "--kv", "k8v4,vt2:vt2"), "vt2 does not serve K"),
    (("eval", "agree", "-m", "TINY", "--kv", "k8v4,k9v9"), "k9v9"),
    (("eval", "agree", "-m", "TINY", "--chat"), "chat template"),
])
def test_errors_say_what_is_wrong(tiny, arguments, said):
    done = subprocess.run([PROGRAM, *(str(tiny) if a == "TINY" else a for a in arguments)], capture_output=True, text=True,
                          input="")
    assert done.returncode in (1, 2) and done.stdout == "" and said in done.stderr, done.stderr


@pytest.mark.parametrize("bounds, said", [
    (("--keep", 8), "--keep needs --max-kv-size"),
    (("--keep", 0), "--keep needs --max-kv-size"),
    (("--max-kv-size", 2), "--max-kv-size cannot be 2; it must be at least 5"),
    (("--max-kv-size", 70, "--keep", 70), "it must be at least 71, one more than the first 70 tokens"),
])
@pytest.mark.parametrize("command", [("run", "-p", "x"), ("probe",), ("bench", "model", "--kv", "auto")], ids=" ".join)
def test_bounds_that_cannot_be_are_wrong_usage(command, bounds, said):
    """Found before the model is looked for."""
    assert said in quire(*command, "-m", "/nowhere/model", *bounds, status=2).stderr


@pytest.mark.parametrize("command", [("run", "-p", "x", "--save"), ("eval", "niah", "--plot")])
def test_outputs_are_checked_before_anything_is_computed(command, tmp_path):
    """A model that is not there is not looked for."""
    for path, said in bad_outputs(tmp_path).items():
        refused = quire(*command, path, "-m", "/nowhere/model", status=1).stderr
        assert "cannot write" in refused and said in refused and "/nowhere" not in refused


def test_needles_drawn(tiny, tmp_path):
    """A picture appears under its name when it is whole. gnuplot is played by a script that keeps what it is told."""
    gnuplot = tmp_path / "gnuplot"
    gnuplot.write_text(f"""#!/bin/sh
cat >'{tmp_path}/script'
name=$(sed -n "s/^set output '\\(.*\\)'$/\\1/p" '{tmp_path}/script' | sed "s/''/'/g")
echo picture >"$name"
exit ${{GNUPLOT_STATUS:-0}}
""")
    gnuplot.chmod(0o755)
    picture = tmp_path / "it's.png"
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ("eval", "niah", "-m", tiny, "--ctx", 900, "--lengths", 2, "--depths", 2, "--kv", "k4v4", "-t", 1, "--hay", TEXT,
               "--plot", picture)
    quire(*command, env=path)
    assert picture.read_text() == "picture\n" and "k4v4: 0 of 4" in (tmp_path / "script").read_text()
    picture.unlink()
    assert "could not draw" in quire(*command, env={**path, "GNUPLOT_STATUS": "3"}, status=1).stderr
    assert not [p for p in tmp_path.iterdir() if "png" in p.name]
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    (nothing / "sh").symlink_to("/bin/sh")
    assert "needs gnuplot" in quire(*command, env={**os.environ, "PATH": str(nothing)}, status=1).stderr


def test_bench_model_keys(tiny):
    result = json.loads(quire("bench", "model", "-m", tiny, "--kv", "k8v4", "--depth", 300, "--gen", 4, "--prompt", 64, "-t",
                              1, "--json").stdout)
    for key in ("tg_tps", "pp_tps", "kv_bytes", "kv_bytes_bf16", "peak_rss"):
        assert result[key] > 0, key
    assert result["fallbacks"] == 0


def test_kld(tiny):
    """The base against itself is 0, fewer bits cost more, and decoding predicts what prefill predicts."""
    common = ("eval", "kld", "-m", tiny, "--text", TEXT, "--ctx", 256, "--chunks", 2, "-t", 1, "--json")
    same, k8, k4 = json.loads(quire(*common, "--raw", "bf16", "--kv", "none,k8v8,k4v4").stdout)
    assert same["kld_mean"] == 0 and same["same_top"] == 1 and same["ppl"] == same["ppl_base"]
    assert 0 < k8["kld_mean"] < k4["kld_mean"] and k8["bits"] > k4["bits"]
    assert same["tokens"] == 2 * 127
    stepped = json.loads(quire(*common, "--kv", "k4v4", "--rows", 1).stdout)
    whole = json.loads(quire(*common, "--kv", "k4v4").stdout)
    assert stepped["kld_mean"] == whole["kld_mean"]
    alone = json.loads(quire(*(word if word != "kld" else "ppl" for word in common), "--kv", "k4v4").stdout)
    assert alone["ppl"] == whole["ppl"] and alone["ppl_error"] > 0 and alone["tokens"] == whole["tokens"]
    assert "perplexity" in quire("eval", "ppl", "-m", tiny, "--text", TEXT, "--ctx", 256, "--chunks", 1, "-t", 1).stdout


def test_one_row_has_no_spread(tiny):
    """What cannot be computed of a single prediction is left out: "-" in the table, null in JSON."""
    for name in "ppl", "kld":
        common = ("eval", name, "-m", tiny, "--text", TEXT, "--ctx", 4, "--chunks", 1, "-t", 1)
        printed = quire(*common).stdout.splitlines()[-1].split()
        assert "nan" not in printed and printed[3] == "-", printed
        result = json.loads(quire(*common, "--json").stdout)
        assert result["tokens"] == 1 and result[f"{name}_error"] is None


@pytest.mark.parametrize("together", [("--together",)] + [()] * full_sweep())
def test_needles(smollm2, together):
    """The raw cache answers for itself where it is in the list, and what it finds is found with fewer bits. Outside of
    test-all one needle at a time is looked for by test_needles_are_compared_with_a_whole_raw_cache."""
    raw, k8v4 = json.loads(quire("eval", "niah", "-m", smollm2, "--ctx", 320, "--lengths", 1, "--depths", 2, "--kv",
                                 "none,k8v4", "-t", 1, "--json", *together).stdout)
    for result in (raw, k8v4):
        assert result["tried"] == 2 and len(result["grid"]) == 2
        assert result["found"] == sum(cell["found"] for cell in result["grid"])
        assert result["found_raw"] == 2 and result["lost"] == 0
        assert result["p_mean"] == pytest.approx(sum(cell["p"] for cell in result["grid"]) / 2)
    assert raw["p_mean"] > 0.5 and abs(k8v4["p_mean"] - raw["p_mean"]) < 0.05 and k8v4["p_mean_raw"] == raw["p_mean"]


def test_needles_are_compared_with_a_whole_raw_cache(smollm2):
    """What bounds the caches of --kv does not bound the one that they are compared with."""
    result = json.loads(quire("eval", "niah", "-m", smollm2, "--ctx", 320, "--lengths", 1, "--depths", 2, "--kv", "none",
                              "--max-kv-size", 128, "-t", 1, "--json").stdout)
    assert result["found_raw"] == 2 and result["found"] == 1 and result["lost"] == 1


def test_needles_in_any_text(tiny, tmp_path):
    """A model of random weights finds nothing, wherever it looks; lines of a file serve as hay."""
    common = ("eval", "niah", "-m", tiny, "--ctx", 900, "--lengths", 2, "--depths", 3, "--kv", "k4v4", "-t", 1, "--json")
    result = json.loads(quire(*common, "--hay", TEXT).stdout)
    assert result["tried"] == 6 and result["found"] == 0 and [cell["length"] for cell in result["grid"]] == 3 * [450] + 3 * [900]
    assert all(0 < cell["p"] < 0.01 for cell in result["grid"])
    (tmp_path / "empty").write_text("\n\n")
    assert "no text" in quire(*common, "--hay", tmp_path / "empty", status=1).stderr
    assert "too short" in quire(*common, "--ctx", 60, status=1).stderr


def test_windows_and_memory_stay_bounded(tmp_path):
    """A Gemma 3 at 2K and at 8K: only the global layers' packed pages grow, by exactly their bits; so does the process."""
    model = models.make(tmp_path / "gemma3.gguf", "gemma3")
    short, long = (json.loads(quire("bench", "model", "-m", model, "--kv", "k4v4", "--depth", depth, "--gen", 0, "--prompt",
                                    0, "-t", 1, "--json", "--ctx", 8192).stdout) for depth in (2048, 8192))
    shape = models.SHAPES["gemma3"]
    n_global = shape["layers"] // 6
    grown = 6144 * n_global * shape["kv"] * 2 * shape["dim"] * short["bits"] / 8
    assert long["kv_bytes"] - short["kv_bytes"] == grown
    assert long["compute_bytes"] == short["compute_bytes"]
    assert long["peak_rss"] - short["peak_rss"] < grown + (1 << 20)


def bench(model, kv, depth, *more):
    return json.loads(quire("bench", "model", "-m", model, "--kv", kv, "--depth", depth, "--gen", 0, "--prompt", 0, "-t", 1,
                            "--json", *more).stdout)


def test_resident_bytes_are_the_codecs(tiny):
    """8192 tokens: full pages by exactly their bits, four raw sinks, and nothing else."""
    shape = models.SHAPES["llama"]
    elements = shape["layers"] * shape["kv"] * 2 * shape["dim"]
    for kv in ("k8v4", "k4v4", "tq3"):
        result = bench(tiny, kv, 8192)
        assert result["packed_bytes"] == 8192 * elements * result["bits"] / 8
        assert result["sink_bytes"] == 4 * elements * 2 and result["open_bytes"] == result["last_raw_bytes"] == 0
        assert result["kv_bytes"] == result["packed_bytes"] + result["sink_bytes"] < 1.02 * result["packed_bytes"]
    middle = bench(tiny, "k4v4", 8191)  # a page that is filling is raw, and is all that comes on top
    assert middle["last_raw_bytes"] == 0 and middle["open_bytes"] == 64 * elements * 2


def codec_presets():
    return [preset["name"] for preset in json.loads(quire("codecs", "--json").stdout)["presets"]]


@pytest.mark.parametrize("arch", ["llama", "gemma4"])
def test_filled_caches_are_those_of_a_prefill(tmp_path, arch):
    """Synthetic rows leave the pages of a prefill, layer by layer, and decoding reads them: every preset, an open page,
    windows that have moved on, layers that share."""
    model = models.make(tmp_path / "model.gguf", arch, dim=64)  # which every preset serves
    depth, presets = 700, ",".join(codec_presets())

    def measured(*more):
        return json.loads(quire("bench", "model", "-m", model, "--kv", presets, "--depth", depth, "--gen", 3, "--prompt", 0,
                                "-t", 1, "--json", *more).stdout)

    for prefilled, filled in zip(measured(), measured("--fill"), strict=True):
        assert filled["filled"] and not prefilled["filled"] and filled["kv"] == prefilled["kv"]
        for key in ("kv_bytes", "packed_bytes", "open_bytes", "last_raw_bytes", "sink_bytes", "kv_bytes_bf16"):
            assert filled[key] == prefilled[key], (filled["kv"], key)
        assert filled["fallbacks"] == filled["shadow_bytes"] == 0
        for ours, theirs in zip(filled["layers"], prefilled["layers"], strict=True):
            assert all(ours[key] == theirs[key] for key in ("kv", "window", "kernel", "sealed_bytes", "raw_bytes"))
            if filled["kv"] != "none" and ours["window"] == 0:
                assert ours["packed_read"] > 0, filled["kv"]


def test_a_filled_cache_is_the_same_in_every_run(tiny):
    """With any number of threads: what is held and what three steps read of it."""
    def measured(threads):
        result = json.loads(quire("bench", "model", "-m", tiny, "--kv", "k4v4", "--depth", 1000, "--gen", 3, "--prompt", 0,
                                  "-t", threads, "--json", "--fill").stdout)
        return result["kv_bytes"], result["layers"]

    assert measured(1) == measured(1) == measured(2)


@pytest.mark.parametrize("fill", [(), ("--fill",)])
def test_a_batch_holds_what_its_sequences_hold(tiny, fill):
    """--depth with a list: the sequences' bytes add up, and each of them attends."""
    def measured(depth):
        return json.loads(quire("bench", "model", "-m", tiny, "--kv", "k4v4", "--depth", depth, "--gen", 2, "--prompt", 0,
                                "-t", 1, "--json", *fill).stdout)

    batch, alone = measured("500,130,0"), [measured(depth) for depth in (500, 130, 0)]
    assert batch["depth"] == [500, 130, 0] and [one["depth"] for one in alone] == [500, 130, 0]
    for key in ("kv_bytes", "kv_bytes_bf16", "packed_bytes", "open_bytes", "sink_bytes"):
        assert batch[key] == sum(one[key] for one in alone), key
    read = batch["layers"][0]["packed_read"]
    if fill:  # a prefill reads too
        assert read == sum(one["layers"][0]["packed_read"] for one in alone)
    assert read > 0 and batch["fallbacks"] == 0


def test_sliding_layers_hold_their_window():
    """Gemma 3's sliding layers: at most the window and a page, in raw rows, whatever --kv says. 1089 tokens are the worst
    case: the oldest page is needed for one token, and the newest has one."""
    gemma3, depth = fetched("gemma3"), 1089
    packed, raw = bench(gemma3, "k4v4", depth), bench(gemma3, "none", depth)
    sliding = [i for i, layer in enumerate(packed["layers"]) if layer["window"] > 0]
    assert len(sliding) == 15 and len(packed["layers"]) == 18
    token = 2 * 256 * 2  # one KV head of 256, K and V in f16
    for i in sliding:
        layer = packed["layers"][i]
        assert layer["window"] == 512 and layer["kv"] == "raw:raw"
        assert 512 * token <= layer["sealed_bytes"] + layer["raw_bytes"] <= (512 + 64) * token
        assert layer == raw["layers"][i]  # the same bytes held and read by the same kernel


def test_windows_are_out_of_reach_of_kv(tmp_path):
    """A model with nothing but sliding layers predicts the same, bit for bit, with any --kv."""
    model = models.make(tmp_path / "sliding.gguf", "gemma3", layers=5)
    for result in json.loads(quire("eval", "kld", "-m", model, "--text", TEXT, "--ctx", 256, "--chunks", 1, "-t", 1, "--json",
                                   "--base-raw", "f16", "--kv", "none,k4v4,tq3").stdout):
        assert result["kld_max"] == 0 and result["same_top"] == 1, result


def test_no_preset_degenerates(smollm2, tmp_path):
    """Greedy texts: a loop would repeat itself, nonsense would surprise the model with the raw cache. Measured over five
    prompts of 200 tokens (docs/ENGINE.md): at most 0.21 more groups repeated, perplexity within 0.92 to 1.06 of the raw
    cache's; two short texts vary more. MLX's two bits for both sides, without sinks (1.5 times), are caught. Outside of
    test-all a preset with the fewest bits of each kind is asked, with scales per channel and with a rotation: they would
    degenerate first, and test_no_preset_costs_more_than_it_did has a bound for every preset."""
    (tmp_path / "prompts").write_text("Tell me how bread is made, step by step.\nWhy is the sky blue?\n")
    presets = [preset["name"] for preset in json.loads(quire("codecs", "--json").stdout)["presets"]]
    if not full_sweep():
        fewest = ["none", "k3v3", "tq3"]
        assert set(fewest) <= set(presets)
        presets = fewest
    common = ("eval", "agree", "-m", smollm2, "--chat", "--prompts", tmp_path / "prompts", "-n", 120, "-t", 1, "--json")
    results = {r["kv"]: r for r in json.loads(quire(*common, "--kv", ",".join(presets)).stdout)}
    same = results["none"]
    assert same["agree"] == same["agree_min"] == 120 and same["same"] == 2
    assert same["ppl"] == same["ppl_raw"] and same["repeat"] == same["repeat_raw"] and same["repeat_error"] == 0

    def good(result):
        return result["repeat"] < result["repeat_raw"] + 0.35 and 0.8 < result["ppl"] / result["ppl_raw"] < 1.25

    for result in results.values():
        assert result["tokens"] > 160 and good(result), result
    assert not good(json.loads(quire(*common, "--kv", "a2:a2", "--sinks", 0).stdout))


# ---------------------------------------------------------------- saved texts

LONG = " ".join(f"w{i * 7 % 59}" for i in range(150))


def bytewise(text):
    """A character that was cut in two is told as bytes (backslashreplace): so is every other, then."""
    return "".join(c if c < "\x80" else "".join(f"\\x{byte:02x}" for byte in c.encode()) for c in text)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("more", [(), ("--kv", "none"), ("--kv", "k4v4", "--max-kv-size", 100)])
def test_saved_text_goes_on(arch, more, tmp_path):
    """In three pieces, each from the file of the one before, the text is the one that was never interrupted."""
    model = models.make(tmp_path / "model.gguf", arch)
    common = ("-m", model, "--temp", 0, "--ignore-end", "--ctx", 1100, *more)
    whole = text_of(*common, "-p", LONG, "-n", 120)
    file = tmp_path / "saved"
    parts = [text_of(*common, "-p", LONG, "-n", 0, "--save", file)]
    for n in (30, 1, 60, 29):
        parts.append(text_of(*common, "-n", n, "--load", file, "--save", file))
    assert bytewise("".join(parts)) == bytewise(whole) and len(whole) >= 120


def test_saved_prompt_is_not_computed_again(tiny, tmp_path):
    file = tmp_path / "saved"
    common = ("run", "-m", tiny, "--temp", 0, "--ignore-end", "--json", "-t", 1)
    quire(*common, "-p", LONG, "-n", 0, "--save", file)
    n = json.loads(quire("inspect", file, "--json").stdout)["length"]
    assert n > 140
    cold = quire(*common, "-p", LONG + " w5 w6", "-n", 20)
    warm = quire(*common, "-p", LONG + " w5 w6", "-n", 20, "--load", file)
    assert warm.stdout == cold.stdout
    report = json.loads(warm.stderr)
    assert report["n_restored"] == n and report["n_prompt"] == json.loads(cold.stderr)["n_prompt"] - n
    # The same text, added: without the start of a text it is the same tokens here.
    added = quire(*common, "-p", " w5 w6", "--append", "-n", 20, "--load", file)
    assert json.loads(added.stderr)["n_restored"] == n
    # Half of it agrees: whole pages are used.
    half = " ".join(LONG.split()[:100]) + " w1 w1 w1"
    cold, warm = quire(*common, "-p", half, "-n", 20), quire(*common, "-p", half, "-n", 20, "--load", file)
    assert warm.stdout == cold.stdout and json.loads(warm.stderr)["n_restored"] % 64 == 0
    assert json.loads(warm.stderr)["n_restored"] > 500


def test_saved_text_of_another_model(tiny, tmp_path):
    file = tmp_path / "saved"
    common = ("--temp", 0, "-t", 1, "-n", 4)
    quire("run", "-m", tiny, *common, "-p", LONG, "--save", file)
    for name, options in (("weights", {"seed": 2}), ("config", {"rope_base": 20000.0})):
        other = models.make(tmp_path / f"{name}.gguf", "llama", **options)
        refused = quire("run", "-m", other, *common, "--load", file, status=1).stderr
        assert f"another model: its {name} differs" in refused
        refused = quire("run", "-m", other, *common, "--load", file, "-p", "zz", status=1).stderr
        assert f"another model: its {name} differs" in refused, "also if the prompt begins otherwise"
    # What a file is called, and its general.* keys, do not make another model.
    again = models.make(tmp_path / "again.gguf", "llama")
    quire("run", "-m", again, *common, "--load", file)
    refused = quire("run", "-m", tiny, *common, "--load", file, "--kv", "k4v4", status=1).stderr
    assert "layer 0 is kc8:vt4 in the file, km4:vt4 in the pool" in refused and "--reseal" in refused
    quire("run", "-m", tiny, *common, "--load", file, "--kv", "k4v4", "--reseal")
    refused = quire("run", "-m", tiny, *common, "--load", file, "--max-kv-size", 200, status=1).stderr
    assert "window" in refused
    refused = quire("run", "-m", tiny, *common, "--load", tiny, status=1).stderr
    assert "not a saved cache" in refused
    assert "--load" in quire("run", "-m", tiny, *common, "--append", "-p", "x", status=2).stderr


def test_digest_of_a_model_is_kept(tmp_path):
    """In a file of the cache, which the next process takes its word for as long as the model's file does not change."""
    model, saved, cache = models.make(tmp_path / "model.gguf", "llama"), tmp_path / "saved", tmp_path / "cache"

    def weights():
        quire("run", "-m", model, "-p", "w1", "-n", 1, "-t", 1, "--save", saved, env={**os.environ, "QUIRE_CACHE": str(cache)})
        return re.search(r"weights\s+([0-9a-f]{32})", quire("inspect", saved).stdout)[1]

    def entry():
        found = list(cache.glob("orders/file-*"))
        return found[0].read_bytes() if found else None

    time.sleep(4)  # a file that has just been written is not trusted
    computed = weights()
    status = model.stat()
    key = struct.pack("=7q", status.st_dev, status.st_ino, status.st_size, *divmod(status.st_mtime_ns, 10**9),
                      *divmod(status.st_ctime_ns, 10**9))
    content = b"quire digest 1\n\0" + key + bytes.fromhex(computed)
    assert entry() == content + xxhash.xxh3_128(content).digest() and weights() == computed
    planted = content[:-16] + b"\xab" * 16
    next(cache.glob("orders/file-*")).write_bytes(planted + xxhash.xxh3_128(planted).digest())
    assert weights() == "ab" * 16
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    with open(model, "r+b") as file:
        file.write(data)
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights() not in (computed, "ab" * 16)


def test_inspect_file(tiny, tmp_path):
    file = tmp_path / "saved"
    quire("run", "-m", tiny, "--temp", 0, "-t", 1, "-n", 4, "-p", LONG, "--save", file, "--ignore-end")
    said = quire("inspect", file).stdout
    for word in ("sound", "architecture llama", "weights ", "kc8:vt4", "pages 0"):
        assert word in said
    report = json.loads(quire("inspect", file, "--json").stdout)
    assert report["sound"] and report["status"] == "QUIRE_OK" and report["version"] == 3
    assert report["history"] == [] and report["exact_tokens"] == report["length"] and "history   none" in said
    assert report["n_tokens"] == report["length"] + 1 == len(report["tokens"])
    assert report["bytes"] == file.stat().st_size and report["layers"][0]["k"] == "kc8"
    data = bytearray(file.read_bytes())
    data[-100] ^= 4
    file.write_bytes(data)
    broken = quire("inspect", file, "--json", status=1)
    report = json.loads(broken.stdout)
    assert not report["sound"] and report["status"] == "QUIRE_E_CORRUPT" and "pages" in report["reason"]
    assert "not sound" in broken.stderr
    file.write_bytes(data[:5000])
    assert json.loads(quire("inspect", file, "--json", status=1).stdout)["status"] == "QUIRE_E_TRUNCATED"
