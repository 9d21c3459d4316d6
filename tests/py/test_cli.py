"""The command line: JSON keys that scripts rely on, exit statuses, and messages that name what was wrong."""

import json
import os
import subprocess

import pytest

PROGRAM = os.environ.get("QUIRE_PROGRAM", "")
pytestmark = pytest.mark.skipif(not os.path.exists(PROGRAM), reason="QUIRE_PROGRAM names no program")


def run(*arguments, **options):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120, **options)


def report(*arguments):
    result = run(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_bench_attn_keys():
    row = report("bench", "attn", "--shape", "8x2x64", "--ctx", "256", "--kv", "k4v4", "-t", "2", "--min-time", "0.01")
    assert {"ms", "bytes_read", "gbps", "kernel", "rel_err"} <= row.keys()
    assert row["ms"] > 0 and row["fallbacks"] == 0 and 0 < row["rel_err"] < 0.02 < row["codec_err"]
    # Four packed pages of two KV heads, 4480 bytes each, and the raw rows: own page and sinks.
    assert row["bytes_read"] >= 4 * 2 * 4480


def test_bench_attn_limits():
    row = report("bench", "attn", "--shape", "8x2x64", "--ctx", "512", "--kv", "k4v4", "--min-time", "0.01", "--no-check")
    assert row["machine_gbps"] > 0 and row["machine_gmacs"] > 0 and row["machine_instructions"]
    best = row["ms_best"] * 1e-3
    assert row["share_of_bandwidth"] == pytest.approx(row["bytes_read"] / best / (row["machine_gbps"] * 1e9))
    macs = 513 * 8 * (64 + 64)  # the row sees itself too
    assert row["share_of_peak"] == pytest.approx(macs / best / (row["machine_gmacs"] * 1e9))
    assert row["gmacs"] == pytest.approx(macs / row["ms"] * 1e-6)
    raw = report("bench", "attn", "--shape", "8x2x64", "--ctx", "512", "--kv", "none", "--min-time", "0.01", "--no-check")
    assert raw["share_of_peak"] is None and raw["share_of_bandwidth"] > 0
    bare = report("bench", "attn", "--shape", "8x2x64", "--kv", "k4v4", "--min-time", "0.01", "--no-check", "--no-limits")
    for key in ("machine_gbps", "machine_gmacs", "machine_instructions", "share_of_bandwidth", "share_of_peak"):
        assert bare[key] is None, key


def test_bench_attn_sweeps_contexts():
    rows = report("bench", "attn", "--shape", "4x2x64", "--ctx", "0,64,1000", "--kv", "k4v4,none", "--min-time", "0.01")
    assert [(row["kv"], row["ctx"]) for row in rows] == [(kv, n) for kv in ("k4v4", "none") for n in (0, 64, 1000)]
    for row in rows:  # each depth as if measured alone
        alone = report("bench", "attn", "--shape", "4x2x64", "--ctx", str(row["ctx"]), "--kv", row["kv"], "--min-time", "0.01")
        assert row["bytes_read"] == alone["bytes_read"] and row["rel_err"] == alone["rel_err"]
        assert row["ns_per_token"] == pytest.approx(row["ms_best"] * 1e6 / (row["ctx"] + 1))


def test_bench_attn_has_room_for_long_contexts():  # holes that raw pages leave take more of a long cache's budget
    row = report("bench", "attn", "--shape", "8x8x128", "--ctx", "131072", "--kv", "k4v4", "--repeat", "1", "--no-check", "--no-limits")
    assert row["ctx"] == 131072 and row["ms"] > 0


@pytest.mark.parametrize("ctx, said", [("64,,128", "''"), ("64,x", "'x'"), ("128,64", "64 does not follow 128"), ("-1", "'-1'")])
def test_bench_attn_refuses_bad_contexts(ctx, said):
    result = run("bench", "attn", "--ctx", ctx)
    assert result.returncode == 2 and "--ctx" in result.stderr and said in result.stderr


def test_bench_attn_takes_a_list_and_rows():
    rows = report("bench", "attn", "--shape", "4x2x64", "--ctx", "128", "--kv", "none,k8v8", "--rows", "70", "--min-time", "0.01")
    assert [row["kv"] for row in rows] == ["none", "k8v8"] and rows[0]["rows"] == 70
    # q and weights as fp16 cost 2.08e-4 each, in the mean over 3 rows x 4 heads (tests/kit/kit.h, tests/unit/test_attend.c)
    halves = rows[0]["kernel"] in ("neon_fp16_raw", "neon_bf16_raw")
    assert rows[0]["rel_err"] < (3.8e-4 if halves else 1e-5) and rows[1]["rel_err"] < 2e-4


def test_bench_attn_layers():
    common = ("bench", "attn", "--shape", "4x2x64", "--ctx", "300", "--kv", "k8v4", "--repeat", "3", "--no-limits")
    one, three = report(*common), report(*common, "--layers", "3")
    assert (one["layers"], three["layers"]) == (1, 3)
    for key in ("bytes_read", "rel_err", "codec_err"):  # of a layer: the first has the same rows in both
        assert one[key] == three[key], key
    assert three["ns_per_token"] == pytest.approx(three["ms_best"] * 1e6 / 301)
    refused = run(*common, "--layers", "3", "--rows", "2")
    assert refused.returncode == 2 and "--layers 3 needs --rows 1" in refused.stderr


def test_inspect_counts_from_the_buffers():
    pool = report("inspect", "--shape", "9x3x64", "--layers", "3", "--ctx", "700", "--kv", "k8v4")
    assert pool["fallbacks"] == 0 and pool["shadow_bytes"] == 0
    assert pool["sealed_bytes"] == 10 * 3 * 3 * 6528  # pages x layers x KV heads x record
    assert pool["kv_bytes_bf16"] == 700 * 3 * 3 * 128 * 2
    assert pool["kv_bytes"] == sum(pool[k] for k in ("sealed_bytes", "open_bytes", "last_raw_bytes", "sink_bytes"))
    assert len(pool["layers"]) == 3 and pool["layers"][0]["packed_read"] > 0


def test_inspect_window_recycles():
    pool = report("inspect", "--shape", "4x2x64", "--layers", "1", "--ctx", "3000", "--window", "128", "--keep", "4", "--kv", "k4v4")
    assert pool["sealed_bytes"] <= 3 * 2 * 4480


def test_codecs_and_version():
    listing = report("codecs", "--dim", "80")
    names = {codec["name"]: codec for codec in listing["codecs"]}
    assert {"kc4", "km4", "km3", "vt4", "tq4", "tqp4", "a4", "q4_0", "raw"} <= names.keys()
    assert names["q4_0"]["bits_per_element"] is None  # 80 is no multiple of 32
    presets = {preset["name"]: preset for preset in listing["presets"]}
    assert presets["k4v4"]["bits_per_element"] == pytest.approx(4.4)
    assert report("version")["page_format"] == 2


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "usage"),
        (["inspekt"], "inspect"),
        (["inspect", "--contxt", "5"], "--contxt"),
        (["inspect", "--ctx"], "--ctx"),
        (["inspect", "--ctx", "many"], "many"),
        (["inspect", "--ctx", "0"], "--ctx"),
        (["inspect", "--kv", "k5v5"], "k5v5"),
        (["inspect", "one", "two"], "two"),
        (["convert", "one"], "TO"),
        (["inspect", "--kv", "vt4:kc4"], "vt4"),
        (["inspect", "--shape", "9x2x64"], "9x2x64"),
        (["inspect", "--shape", "4x2x63"], "63"),
        (["inspect", "--shape", "4x2x80", "--kv", "q4_0"], "q4_0"),
        (["codecs", "extra"], "extra"),
    ],
)
def test_usage_errors(arguments, said):
    result = run(*arguments)
    assert result.returncode in (1, 2) and result.stdout == ""
    assert said.lower() in result.stderr.lower()


@pytest.mark.parametrize("arguments", [["--help"], ["help", "inspect"], ["bench", "attn", "--help"], ["codecs", "--help"]])
def test_help_goes_to_stdout(arguments):
    result = run(*arguments)
    assert result.returncode == 0 and "quire" in result.stdout and result.stderr == ""


def test_bench_seal():
    row = report("bench", "seal", "--shape", "4x2x64", "--kv", "k4v4", "--min-time", "0.01")
    assert {"kv", "pair", "shape", "raw", "isa", "us_seal", "us_append", "mb_per_s", "repeats"} <= row.keys()
    assert row["pair"] == "km4:vt4" and row["page_bytes"] == 4480 and row["repeats"] >= 20
    # 64 rows of K and V in fp16, in the time that sealing takes.
    assert row["us_seal"] > 0 and row["mb_per_s"] == pytest.approx(64 * 128 * 2 / row["us_seal"], rel=1e-6)
    rows = report("bench", "seal", "--shape", "4x2x96", "--kv", "kc3:vt3,tqp4:vt8,q8_0:raw", "--raw", "bf16", "--min-time", "0.01")
    assert [row["kv"] for row in rows] == ["kc3:vt3", "tqp4:vt8", "q8_0:raw"] and rows[0]["raw"] == "bf16"
    assert report("bench", "seal", "--shape", "4x2x80", "--kv", "km4:vt4", "--min-time", "0.01")["page_bytes"] == 5632
    help_text = run("help", "bench", "seal").stdout
    assert "--kv" in help_text and "us seal" in help_text


@pytest.mark.parametrize("kv, said", [("k4v5", "k4v5"), ("kc4:vt4,", "''"), ("none", "nothing to time"), ("q4_0:q4_0", "80")])
def test_bench_seal_refuses(kv, said):
    result = run("bench", "seal", "--shape", "4x2x80", "--kv", kv)
    assert result.returncode == 2 and result.stdout == "" and said in result.stderr


def test_bench_ops():
    row = report("bench", "ops", "--seqs", "4", "--ctx", "512", "--kv", "none", "--to", "k4v4")
    assert row["pages"] == 4 * 8 and row["seqs"] == 4 and row["ctx"] == 512
    assert all(row["us_" + name] > 0 for name in ("merge", "extract", "filter", "extend", "trim", "free", "requantize_page"))
    assert "merge" in run("bench", "ops", "--seqs", "2", "--ctx", "128").stdout


@pytest.mark.parametrize("arguments, said", [(("--ctx", "100"), "--ctx"), (("--to", "a4"), "a4"), (("--kv", "k9"), "k9")])
def test_bench_ops_refuses(arguments, said):
    result = run("bench", "ops", *arguments)
    assert result.returncode == 2 and result.stdout == "" and said in result.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="not here: this system has no affinity of processes")
def test_threads_follow_affinity():
    processors = sorted(os.sched_getaffinity(0))
    for some in (processors[:1], processors[-1:], processors[:2]):
        def bound():
            os.sched_setaffinity(0, some)
        done = run("bench", "attn", "--shape", "4x2x64", "--ctx", "64", "--min-time", "0.01", "--no-check", "--no-limits", "--json",
                   preexec_fn=bound)
        assert done.returncode == 0 and json.loads(done.stdout)["threads"] <= len(some), done.stderr
    assert "affinity" in run("bench", "attn", "--help").stdout


def bad_outputs(tmp_path):
    """Paths that cannot be written, and what should be said of each."""
    (tmp_path / "file").write_text("")
    (tmp_path / "busy.part").mkdir()
    return {tmp_path / "missing" / "x": "no directory", tmp_path: "is a directory", tmp_path / "file" / "x": "not a directory",
            "/dev/null": "not a regular file", f"{tmp_path}/": "ends in '/'", tmp_path / ("x" * 300): "too long",
            tmp_path / "busy": "busy.part': it is a directory"}


@pytest.mark.parametrize("command", [("convert", "/nowhere/from"), ("store", "export", "/nowhere/store", "12", "-o")])
def test_outputs_are_checked_first(command, tmp_path):
    """Before what is to be read, which is not there either."""
    for path, said in bad_outputs(tmp_path).items():
        result = run(*command, str(path))
        assert result.returncode == 1 and "cannot write" in result.stderr and said in result.stderr, result.stderr
        assert "/nowhere" not in result.stderr
    for path in (tmp_path / "new", tmp_path / "file"):
        result = run(*command, str(path))
        assert result.returncode == 1 and "/nowhere" in result.stderr and "cannot write" not in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["busy.part", "file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="not here: root may write everywhere")
def test_output_in_a_directory_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    result = run("convert", "/nowhere/from", str(tmp_path / "x"))
    assert result.returncode == 1 and "Permission denied" in result.stderr


def test_bench_save_checks_its_directory_first(tmp_path):
    result = run("bench", "save", "--dir", str(tmp_path / "missing"), "--ctx", "1000000", "--layers", "64")
    assert result.returncode == 1 and "no directory" in result.stderr


def test_full_disk_is_noticed():
    with open("/dev/full", "w") as full:
        result = subprocess.run([PROGRAM, "codecs"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1 and result.stderr


def test_bench_save_keys(tmp_path):
    row = report("bench", "save", "--shape", "4x2x64", "--layers", "2", "--ctx", "1000", "--runs", "1", "--dir", str(tmp_path))
    assert row["bytes"] > 1000 * 2 * 2 * 64 and not list(tmp_path.iterdir())
    for key in ("save_gbps", "disk_write_gbps", "restore_gbps", "disk_read_gbps", "save_ratio", "restore_ratio"):
        assert row[key] > 0


def test_inspect_refuses_what_is_no_file(tmp_path):
    (tmp_path / "foreign").write_bytes(b"something else altogether, and long enough to have a header of sixty-four bytes")
    for name, status in (("foreign", "QUIRE_E_FOREIGN"), ("nothing", "QUIRE_E_IO")):
        result = run("inspect", str(tmp_path / name), "--json")
        assert result.returncode == 1 and "cannot inspect" in result.stderr
        assert json.loads(result.stdout)["status"] == status and not json.loads(result.stdout)["sound"]
