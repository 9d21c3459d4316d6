"""bench/fidelity without models and without llama.cpp: what it reads, keeps and draws."""

import hashlib
import importlib.machinery
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"

# As llama-perplexity --kl-divergence ends; the numbers are made up.
REPORT = """
chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS            Same top p
   1       9.1000 ±    0.5000       0.00100 ±    0.00200       0.00500 ±    0.00030     2.000 ±  0.100 %    95.000 ±  0.600 %

====== Perplexity statistics ======
Mean PPL(Q)                   :  10.100000 ±   0.300000
Mean PPL(base)                :  10.000000 ±   0.290000
Cor(ln(PPL(Q)), ln(PPL(base))):  99.80%
Mean ln(PPL(Q)/PPL(base))     :   0.009950 ±   0.001200
Mean PPL(Q)/PPL(base)         :   1.010000 ±   0.001212
Mean PPL(Q)-PPL(base)         :   0.100000 ±   0.012000

====== KL divergence statistics ======
Mean    KLD:   0.005300 ±   0.000200
Maximum KLD:   1.234567
99.9%   KLD:   0.250000
99.0%   KLD:   0.050000
Median  KLD:   0.002000
Minimum KLD:  -0.000010

====== Token probability statistics ======
Mean    Δp: -0.050 ± 0.030 %
RMS Δp    :  2.000 ± 0.100 %
Same top p: 95.900 ± 0.310 %
"""


@pytest.fixture()
def fidelity(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_loader("fidelity", importlib.machinery.SourceFileLoader("fidelity", str(BENCH / "fidelity")))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(engine="quire", cache="k4v4", bits=4.375, kld=0.003, model="smollm2", **more):
    return {"table": "presets", "model": model, "text": "a.txt", "digest": "0123456789ab", "ctx": 2048, "chunks": 4,
            "engine": engine, "cache": cache, "bits": bits, "kld": kld, "kld_error": 0.0001, "kld_p999": 0.1,
            "same_top": 0.97, "ppl_ratio": 1.003, "ppl_base": 12.5, **more}


ROWS = [row(cache="k8v4", bits=6.375, kld=0.001), row(), row(cache="tq4", bits=4.25, kld=0.01),
        row(cache="q4_0", bits=4.5, kld=0.09), row("llama.cpp", "q4_0:q4_0", 4.5, 0.0412), row("llama.cpp", "f16:f16", 16, 1e-6),
        row(model="gemma3", kld=0.004)]


def test_report_is_read(fidelity):
    assert fidelity.peer_perplexity.parse(REPORT) == pytest.approx(
        {"kld": 0.0053, "kld_error": 1.96 * 0.0002, "kld_p999": 0.25, "same_top": 0.959, "ppl": 10.1})
    assert fidelity.peer_perplexity.parse_perplexity("[1]9.1000,[2]10.0123,\n") == 10.0123
    assert fidelity.peer_perplexity.pair_bits("q8_0:q4_0") == 6.5


@pytest.mark.parametrize("line", ["Mean    KLD", "99.9%   KLD", "Same top p:", "Mean PPL(Q)  "])
def test_report_without_a_figure_is_refused(fidelity, line):
    kept = [text for text in REPORT.splitlines() if not text.startswith(line)]
    with pytest.raises(SystemExit, match="did not print"):
        fidelity.peer_perplexity.parse("\n".join(kept))
    with pytest.raises(SystemExit, match="did not print"):
        fidelity.peer_perplexity.parse_perplexity(REPORT)


def test_numbers_are_always_the_same(fidelity):
    text = fidelity.numbers()
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == "89ea00b06abb"
    assert json.loads(text.splitlines()[-1])["id"] == 399


def test_every_ablation_names_two_caches(fidelity):
    assert fidelity.ABLATION and all(what and on.split()[0] and off.split()[0] and on != off for what, on, off in fidelity.ABLATION)


def test_the_line_goes_through_the_best(fidelity):
    ours = [r for r in ROWS if r["engine"] == "quire" and r["model"] == "smollm2"]
    assert [r["cache"] for r in fidelity.pareto(ours)] == ["tq4", "k4v4", "k8v4"]


def test_a_peer_is_compared_with_no_more_bits(fidelity):
    assert fidelity.best_of_ours(row("llama.cpp", "q8_0:q4_0", 6.5), ROWS)["cache"] == "k8v4"
    assert fidelity.best_of_ours(row("llama.cpp", "x", 4.3), ROWS)["cache"] == "tq4"
    assert fidelity.best_of_ours(row("llama.cpp", "x", 2), ROWS) is None


def test_peers_are_kept_once(fidelity, monkeypatch, tmp_path):
    monkeypatch.setattr(fidelity, "PEERS", tmp_path / "peers.json")
    fidelity.store_peers(ROWS)
    fidelity.store_peers([row("llama.cpp", "q4_0:q4_0", 4.5, 0.05), row("llama.cpp", "q4_0:q4_0", 4.5, 0.06, digest="another")])
    kept = {(r["digest"], r["cache"]): r["kld"] for r in fidelity.load_peers()}
    assert kept == {("0123456789ab", "q4_0:q4_0"): 0.05, ("another", "q4_0:q4_0"): 0.06}


def bench_of(fidelity, monkeypatch, **changes):
    """Nothing runs: figures of Quire are those of row()."""
    options = type("Options", (), {"stored": True, "peer": fidelity.PEER, **changes})
    bench = fidelity.Bench(options, None)
    own = {key: value for key, value in row().items() if key not in ("table", "model", "text", "digest", "ctx", "chunks")}
    monkeypatch.setattr(bench, "ours", lambda *_: iter([own]))
    return bench


def test_stored_peers_are_those_of_the_same_text(fidelity, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(fidelity, "PEERS", tmp_path / "peers.json")
    path = tmp_path / "text"
    path.write_text("abc")
    text = fidelity.Text("a.txt", path)
    same = row("llama.cpp", "q4_0:q4_0", 4.5, 0.04, **text.key())
    others = [{**same, "ctx": 1024}, {**same, "model": "gemma3"}, {**same, "digest": "another"}]
    fidelity.store_peers([same, *others])
    rows = bench_of(fidelity, monkeypatch).table("presets", "smollm2", text, 2048, 4, "k4v4")
    assert [(r["engine"], r["kld"]) for r in rows] == [("quire", 0.003), ("llama.cpp", 0.04)]
    assert "13.3x k4v4" in capsys.readouterr().out


def test_other_tokens_are_noticed(fidelity, monkeypatch, tmp_path):
    path = tmp_path / "text"
    path.write_text("abc")
    bench = bench_of(fidelity, monkeypatch)
    monkeypatch.setattr(bench, "theirs", lambda *_: [row("llama.cpp", ppl_base=12.52)])
    with pytest.raises(SystemExit, match="not the same tokens"):
        bench.table("presets", "smollm2", fidelity.Text("a.txt", path), 2048, 4, "k4v4")


def test_the_committed_peers_can_be_used(fidelity):
    wanted = {"engine", "cache", "model", "bits", "kld", "ppl_base", "text", "digest", "ctx", "chunks", "where"}
    kept = fidelity.load_peers()
    assert kept and all(wanted <= r.keys() and r["engine"] != "quire" and r["kld"] > 0 for r in kept)


def test_the_picture_has_every_point(fidelity, tmp_path):
    script = fidelity.plot_script(ROWS, tmp_path / "a.svg")
    assert script.count("\nplot ") == 2 and 'title "llama.cpp"' in script and "set logscale y" in script
    for r in ROWS:
        assert (f'{r["bits"]} {r["kld"]} "{r["cache"]}"' in script) == (r["bits"] < 16)


def test_numbers_of_a_run_are_printed_and_drawn(tmp_path):
    numbers, picture = tmp_path / "rows.json", tmp_path / "a.svg"
    numbers.write_text(json.dumps(ROWS + [row(table="ablation", ingredient="widths", without="kc4:vt4", kld_without=0.006,
                                              **{"with": "k4v4"})]))
    done = subprocess.run([sys.executable, BENCH / "fidelity", "--draw", numbers, "--plot", picture], text=True,
                          capture_output=True, check=True)
    assert "13.7x k4v4" in done.stdout and "2.00x" in done.stdout
    if shutil.which("gnuplot"):
        assert "</svg>" in picture.read_text()
    else:
        assert "no gnuplot" in done.stderr


def test_misspelt_peers_are_refused():
    done = subprocess.run([sys.executable, BENCH / "fidelity", "--draw", "x", "--peer", "q9_0:q4_0"], text=True,
                          capture_output=True)
    assert done.returncode == 2 and "q9_0:q4_0" in done.stderr


def test_speeds_are_multiples_of_f16(fidelity, monkeypatch, tmp_path, capsys):
    class Ggml:
        def measure(self, work, pair, threads):
            return {"f16:f16": 16, "q8_0:q4_0": 32}[pair]

    times = iter([3, 2, 4])  # the best of the rounds counts
    monkeypatch.setattr(fidelity.peer_ggml, "Ggml", Ggml)
    monkeypatch.setattr(fidelity.programs, "run", lambda *_: [{"kv": "none", "ms_best": 8}, {"kv": "k4v4", "ms_best": next(times)}])
    monkeypatch.setattr(sys, "argv", ["fidelity", "--stored", "--draw", "x"])
    options = fidelity.parse_arguments()
    options.stored, options.peer, options.kv, options.build = False, "q8_0:q4_0", "k4v4", tmp_path
    assert fidelity.Bench(options, tmp_path).decode_speed() == {"none": 2, "k4v4": 8, "f16:f16": 1, "q8_0:q4_0": 0.5}
    options.no_speed = True
    assert fidelity.Bench(options, tmp_path).decode_speed() == {}
    fidelity.print_table([row(decode=8.0), row(cache="k3v3")])
    assert "8.00x" in capsys.readouterr().out


@pytest.mark.parametrize("bench, option", [("fidelity", "--json"), ("fidelity", "--plot"), ("models", "--json"), ("memory", "--json"),
                                           ("memory", "--plot"), ("peers", "--json"), ("peers", "--plot"), ("peers", "--curve")])
def test_outputs_are_checked_before_anything_is_measured(bench, option, tmp_path):
    """With programs that are all `true`: something that is measured or built would fail, or not be there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/quire").symlink_to(shutil.which("true"))
    build = ["--quire", str(tmp_path / "bin/quire")] if bench == "peers" else ["--build", str(tmp_path)]
    if bench == "fidelity":
        build += ["--text", __file__]
    for path, said in ((tmp_path / "missing/x", "no directory"), (tmp_path, "is a directory")):
        done = subprocess.run([sys.executable, BENCH / bench, *build, option, path], capture_output=True, text=True, timeout=60,
                              env={"PATH": "", "QUIRE_CACHE": str(tmp_path / "cache")})
        assert done.returncode == 1 and said in done.stderr and "cannot write" in done.stderr, done.stderr
