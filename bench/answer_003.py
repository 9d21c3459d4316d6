"""Request 003: attention on TurboQuant's codes. Its table, prefill of 128 queries, and decode: fused beside dequantizing
first; the memory of both; the cosine between them."""

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


def peer_arguments(run, rows, *more):
    shape, contexts = shape_and_contexts(run)
    return ["--shape", shape, "--rows", rows, "--ctx", ",".join(map(str, contexts)), "-t", run.threads, *more]


def peer_command(run, rows, *more):
    arguments = " ".join(map(str, peer_arguments(run, rows, *more)))
    return f"~/.cache/quire/venv/bin/python bench/peer_dequant.py {arguments}"


def run_peer(run, rows, *more):
    arguments = ["--build", run.build, "--seconds", 0.02 if run.short else 1, *peer_arguments(run, rows, *more)]
    return json.loads(run.output(run.python, ROOT / "bench/peer_dequant.py", *arguments))


def measure(run, rows):
    """{ctx: {"fused": ms, "ways": {name: result}}}, and what is missing. Both take turns; the best of each counts."""
    _, contexts = shape_and_contexts(run)
    best, missing = {ctx: {"fused": math.inf, "ways": {}} for ctx in contexts}, {}
    for turn in range(1 if run.short else 2):
        run.progress(f"003: {queries(rows)}, turn {turn + 1}")
        for r in run.quire(*fused_arguments(run, rows)):
            best[r["ctx"]]["fused"] = min(best[r["ctx"]]["fused"], r["ms_best"])
        if not run.python.exists():
            return best, {"torch": "no Python environment: run tools/setup bench"}
        report = run_peer(run, rows)
        missing = report["missing"]
        for entry in report["results"]:
            ways = best[entry["ctx"]]["ways"]
            for way in entry["ways"]:
                ways[way["way"]] = min(way, ways.get(way["way"], way), key=lambda w: w["ms"])
    return best, missing


def check_outputs(run, rows):
    """{ctx: entry with "cosine", "packed_bytes" and "fused_extra_bytes"}"""
    if not run.python.exists():
        return {}
    run.progress(f"003: {queries(rows)}, cosine")
    return {entry["ctx"]: entry for entry in run_peer(run, rows, "--check")["results"]}


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


def memory_table(best, outputs):
    rows = []
    for ctx, entry in outputs.items():
        way = fastest(best[ctx])
        rows.append([context_name(ctx), megabytes(entry["packed_bytes"]), megabytes(entry["fused_extra_bytes"]),
                     megabytes(way and way["extra_bytes"])])
    return Table(f"Peak memory beside the packed cache, {PROMPT} queries", ["KV tokens", "packed cache", "fused", "dequantize + SDPA"],
                 rows, "What the process grows by during the call, by the kernel's count of resident pages. Fused:"
                 " queries, output and a step's scratch, whatever the length.")


def speed_check(run, rows, best):
    ratios = {ctx: fastest(entry)["ms"] / entry["fused"] for ctx, entry in best.items() if entry["ways"]}
    listed = ", ".join(f"{ratio:.2f}x at {context_name(ctx)}" for ctx, ratio in ratios.items())
    ok = None if run.short or not ratios else min(ratios.values()) >= 1
    return Check(f"Fused is at least as fast as dequantize + SDPA at every length, {queries(rows)}", ok,
                 f"As fast by {listed}." if ratios else "No SDPA to compare with is installed.",
                 f"{run.command(fused_arguments(run, rows))}; {peer_command(run, rows)}")


def cosine_check(run, outputs):
    if not outputs:
        return Check("Cosine 1.0 with the dequantized path", None, "No Python environment: run tools/setup bench.", "")
    listed = "; ".join(f"{queries(rows)}: " + ", ".join(f"{entry['cosine']:.5f} at {context_name(ctx)}" for (ctx, n), entry
                                                        in outputs.items() if n == rows) for rows in (PROMPT, DECODE))
    return Check("Cosine 1.0 with the dequantized path", min(entry["cosine"] for entry in outputs.values()) >= COSINE,
                 f"{listed} (at least {COSINE} is asked).", peer_command(run, PROMPT, "--check"))


def memory_check(run, best, outputs):
    """The fused call must not grow with the context, the other does."""
    known = {ctx: entry["fused_extra_bytes"] for ctx, entry in outputs.items() if entry["fused_extra_bytes"] is not None}
    if not known:
        return Check("Memory is bounded: no dequantized copy", None, "This system does not tell a process's peak.", "")
    longest = max(known)
    copy = (fastest(best[longest]) or {}).get("extra_bytes")
    return Check("Memory is bounded: no dequantized copy of the cache", max(known.values()) <= 16 * MB,
                 f"At {context_name(longest)} the call takes {megabytes(known[longest])} beside the cache;"
                 f" dequantize + SDPA takes {megabytes(copy)}.", peer_command(run, PROMPT, "--check"))


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


def summary_of(checks):
    missed = [check.text for check in checks if check.ok is False]
    start = ("Attention reads TurboQuant's codes where they are, for one query and for many, and keeps no dequantized copy."
             " The dequantization that it is held against is a loop in C on all threads, which keeps rows rotated.")
    return start + (f" Not reached here: {'; '.join(missed)}." if missed else "")


def answer(run):
    prompt, missing = measure(run, PROMPT)
    decode, _ = measure(run, DECODE)
    outputs = {rows: check_outputs(run, rows) for rows in (PROMPT, DECODE)}
    flat = {(ctx, rows): entry for rows, entries in outputs.items() for ctx, entry in entries.items()}
    checks = [speed_check(run, PROMPT, prompt), speed_check(run, DECODE, decode), cosine_check(run, flat),
              memory_check(run, prompt, outputs[PROMPT])]
    tables = [speed_table(PROMPT, prompt, missing), speed_table(DECODE, decode, missing)]
    if outputs[PROMPT]:
        tables += [memory_table(prompt, outputs[PROMPT]), ways_table(PROMPT, prompt), ways_table(DECODE, decode)]
    data = {"prompt": prompt, "decode": decode, "outputs": list(flat.values()), "missing": missing}
    return Section("003", "TurboQuant inside attention", summary_of(checks), checks, tables, [plot(run, prompt)], NOTES, data)
