"""Request 003: attention on TurboQuant's codes. Its table, prefill of 128 queries, and decode:
fused beside dequantizing first; the memory of both; the cosine between them."""

import json
import math

import curves
import svg
from answering import Check, Section, Table
from curves import context_name
from programs import ROOT

K, MB = 1024, 1e6
SHAPE, KV = "32x8x128", "tq4"  # 8 KV heads of 128, 4 query heads each
PROMPT, DECODE = 128, 1
THEIRS = {2 * K: "17.9x slower", 8 * K: "2.9x slower", 32 * K: "3.4x slower", 64 * K: "3.4x slower"}
COSINE = 0.999


def shape_and_contexts(run):
    return ("8x2x64", [128, 256]) if run.short else (SHAPE, list(THEIRS))


def queries(rows):
    return f"{rows} queries" if rows > 1 else "decode"


# ---------------------------------------------------------------- measuring


def fused_arguments(run, rows):
    shape, contexts = shape_and_contexts(run)
    return ["bench", "attn", "--shape", shape, "--rows", rows, "--ctx", ",".join(map(str, contexts)), "--kv", KV,
            "-t", run.threads, "--min-time", 0.02 if run.short else 1, "--no-check", "--no-limits"]


def peer_arguments(run, *more):
    shape, contexts = shape_and_contexts(run)
    return ["--shape", shape, "--rows", f"{PROMPT},{DECODE}", "--ctx", ",".join(map(str, contexts)), "-t", run.threads, *more]


def peer_command(run, *more):
    return f"~/.cache/quire/venv/bin/python bench/peer_dequant.py {' '.join(map(str, peer_arguments(run, *more)))}"


def run_peer(run, *more):
    arguments = ["--build", run.build, "--seconds", 0.02 if run.short else 1, *peer_arguments(run, *more)]
    return json.loads(run.output(run.python, ROOT / "bench/peer_dequant.py", *arguments))


def measure_fused(run, best):
    for rows in (PROMPT, DECODE):
        for r in run.quire(*fused_arguments(run, rows)):
            entry = best[rows, r["ctx"]]
            entry["fused"] = min(entry["fused"], r["ms_best"])


def measure_ways(run, best, *more):
    """-> {library: why it is missing}"""
    report = run_peer(run, *more)
    for found in report["results"]:
        entry = best[found["rows"], found["ctx"]]
        entry["packed_bytes"] = found["packed_bytes"]
        for key in ("cosine", "fused_extra_bytes"):
            entry[key] = found.get(key, entry[key])
        for way in found["ways"]:
            known = entry["ways"].get(way["way"], way)
            entry["ways"][way["way"]] = {**min(way, known, key=lambda w: w["ms"]), "extra_bytes": known["extra_bytes"]}
    return report["missing"]


def measure(run):
    """{(rows, ctx): entry}, and {library: why it is missing}. Both take turns, and the best of
    each counts."""
    _, contexts = shape_and_contexts(run)
    best = {(rows, ctx): {"fused": math.inf, "ways": {}, "cosine": None, "fused_extra_bytes": None, "packed_bytes": None}
            for rows in (PROMPT, DECODE) for ctx in contexts}
    missing = {} if run.python.exists() else {"torch and mlx": "there is no Python environment, run tools/setup bench"}
    for turn in range(1 if run.short else 2):
        run.progress(f"003: turn {turn + 1}, fused")
        measure_fused(run, best)
        if run.python.exists():
            run.progress(f"003: turn {turn + 1}, dequantize + SDPA")
            missing = measure_ways(run, best, *(["--check"] if turn == 0 else []))
    return best, missing


def of_rows(best, rows):
    """{ctx: entry}"""
    return {ctx: entry for (n, ctx), entry in best.items() if n == rows}


def fastest(entry):
    """The fastest way of dequantizing and attending, or None."""
    return min(entry["ways"].values(), key=lambda way: way["ms"], default=None)


# ---------------------------------------------------------------- the section


def speed_table(rows, best, missing):
    lines = []
    for ctx, entry in best.items():
        way, fused = fastest(entry), entry["fused"]
        theirs = [THEIRS.get(ctx, "-")] if rows == PROMPT else []
        if way is None:
            lines.append([context_name(ctx), f"{fused:.2f}", *["missing"] * 4, *theirs])
            continue
        lines.append([context_name(ctx), f"{fused:.2f}", f"{way['ms']:.2f}", way["way"], f"{way['sdpa_ms']:.2f}",
                      f"{way['ms'] / fused:.2f}x", *theirs])
    note = "Fused faster: above 1x. SDPA alone is what attention costs when K and V are dequantized already."
    note += "".join(f" Missing: {name}: {reason}." for name, reason in missing.items())
    return Table(f"{queries(rows).capitalize()}, one layer: fused `{KV}` beside dequantize + SDPA, ms",
                 ["KV tokens", "fused", "dequantize + SDPA", "fastest way", "SDPA alone", "fused is faster by",
                  *(["the request's kernel"] if rows == PROMPT else [])], lines, note)


def ways_table(rows, best):
    names = list(dict.fromkeys(name for entry in best.values() for name in entry["ways"]))

    def text(entry, name):
        way = entry["ways"].get(name)
        return f"{way['dequantize_ms']:.1f} + {way['sdpa_ms']:.1f}" if way else "-"

    return Table(f"The ways of dequantizing and attending, {queries(rows)}: ms", ["way", *map(context_name, best)],
                 [[name, *(text(entry, name) for entry in best.values())] for name in names],
                 "C loop, numpy: TurboQuant's levels times norms into rotated rows, with q rotated instead of K. A way that"
                 " would take more than ten seconds is left out.")


def megabytes(n):
    return "-" if n is None else f"{n / MB:.1f} MB"


def memory_table(best):
    rows = [[context_name(ctx), *map(megabytes, (entry["packed_bytes"], entry["fused_extra_bytes"], copy_bytes(entry)))]
            for ctx, entry in best.items()]
    return Table(f"Peak memory beside the packed cache, {PROMPT} queries", ["KV tokens", "packed cache", "fused", "dequantize + SDPA"],
                 rows, "What the process grows by during the call, as Linux counts it. Fused: rows, queries, output and a"
                 " step's scratch, whatever the length.")


def copy_bytes(entry):
    """What the fastest way takes."""
    return (fastest(entry) or {}).get("extra_bytes")


def speed_check(run, rows, best):
    ratios = {ctx: fastest(entry)["ms"] / entry["fused"] for ctx, entry in best.items() if entry["ways"]}
    listed = ", ".join(f"{ratio:.2f}x at {context_name(ctx)}" for ctx, ratio in ratios.items())
    ok = None if run.short or not ratios else min(ratios.values()) >= 1
    return Check(f"Fused is at least as fast as dequantize + SDPA at every length, {queries(rows)}", ok,
                 f"As fast by {listed}." if ratios else "No SDPA to compare with is installed.",
                 f"{run.command(fused_arguments(run, rows))}; {peer_command(run)}")


def cosine_check(run, best):
    known = {key: entry["cosine"] for key, entry in best.items() if entry["cosine"] is not None}
    listed = "; ".join(f"{queries(rows)}: " + ", ".join(f"{known[n, ctx]:.5f} at {context_name(ctx)}" for n, ctx in known if n == rows)
                       for rows in (PROMPT, DECODE))
    return Check("Cosine 1.0 with the dequantized path", min(known.values()) >= COSINE if known else None,
                 f"{listed} (at least {COSINE} is asked)." if known else "No Python environment: run tools/setup bench.",
                 peer_command(run, "--check"))


def memory_check(run, best):
    """The fused call must not grow with the context, as the other does."""
    known = {ctx: entry["fused_extra_bytes"] for ctx, entry in best.items() if entry["fused_extra_bytes"] is not None}
    if not known:
        return Check("Memory is bounded: no dequantized copy of the cache", None, "A process's peak is not known here.", "")
    longest = max(known)
    return Check("Memory is bounded: no dequantized copy of the cache", max(known.values()) <= 16 * MB,
                 f"At {context_name(longest)} the call takes {megabytes(known[longest])} beside the cache;"
                 f" dequantize + SDPA takes {megabytes(copy_bytes(best[longest]))}.", peer_command(run, "--check"))


def plot(run, best):
    """Milliseconds of fused and of the fastest other way, by context; 128 queries."""
    lines = [("fused tq4", svg.QUIRE, [(ctx, entry["fused"]) for ctx, entry in best.items()]),
             ("dequantize + SDPA", svg.PEER, [(ctx, fastest(entry)["ms"]) for ctx, entry in best.items() if entry["ways"]])]
    curves.draw(lines, f"{PROMPT} queries over TurboQuant pages, one layer: ms", run.out / "003-fused.svg")
    return "003-fused.svg", "Time of 128 queries over TurboQuant pages, fused and by dequantizing first"


NOTES = [
    "`tq4` is TurboQuant's mse codec for K and V: rows rotated by a Hadamard matrix with random signs, a Lloyd-Max codebook"
    " of 16 levels, a norm per row; K less the mean of its page. [FORMAT.md](FORMAT.md) has every bit; pages exchange codes"
    " and norms with mlx-vlm's TurboQuantKVCache.",
    "The request's table has one layer, 8 KV heads of 128, 4 query heads each, 128 queries, on an M5 Max. Ratios there are"
    " its fused kernel beside MLX's native SDPA on dequantized rows.",
    "Fused rows are causal and also see the tokens of their own step; the other way attends without a mask, which is the"
    " less work.",
]


def slower_note(run, prompt):
    """Why many queries may be slower here than a library's SDPA."""
    isa = run.quire("version")["isa"]
    slower = [ctx for ctx, entry in prompt.items() if entry["ways"] and fastest(entry)["ms"] < entry["fused"]]
    if not slower:
        return []
    return [f"With {PROMPT} queries arithmetic is the limit, not memory. Quire's `{isa}` kernels multiply TurboQuant's levels as"
            " integers; torch multiplies floats with the widest vectors or the matrix units that the processor has."
            " [KERNELS.md](KERNELS.md) has the products of each level."]


def summary_of(checks):
    missed = [check.text for check in checks if check.ok is False]
    start = ("Attention reads TurboQuant's codes where they are, for one query and for many, and keeps no dequantized copy."
             " The dequantization that it is held against is a loop in C on all threads, which keeps rows rotated.")
    return start + (f" Not reached here: {'; '.join(missed)}." if missed else "")


def answer(run):
    best, missing = measure(run)
    prompt, decode = of_rows(best, PROMPT), of_rows(best, DECODE)
    checks = [speed_check(run, PROMPT, prompt), speed_check(run, DECODE, decode), cosine_check(run, best),
              memory_check(run, prompt)]
    tables = [speed_table(PROMPT, prompt, missing), speed_table(DECODE, decode, missing), memory_table(prompt)]
    tables += [ways_table(rows, entries) for rows, entries in ((PROMPT, prompt), (DECODE, decode)) if fastest(entries[min(entries)])]
    data = {"results": [{"rows": rows, "ctx": ctx, **entry} for (rows, ctx), entry in best.items()], "missing": missing}
    return Section("003", "TurboQuant inside attention", summary_of(checks), checks, tables, [plot(run, prompt)],
                   NOTES + slower_note(run, prompt), data)
