"""Request 001: rotating caches that are quantized, and K and V of different bits. Its test plan
line by line, its tables of latency and memory, and its reviewer's warnings."""

import json
import math
import os
import shlex
import subprocess

import curves
import svg
from answering import Check, Section, Table
from attention_peers import find_peers
from curves import context_name
from peer_ggml import Work
from programs import ROOT

SHAPE, LAYERS = "32x8x128", 32  # Llama-3-8B
F16, SPLIT, Q4 = "none", "k8v4", "k4v4"
NAMES = {F16: "f16", SPLIT: "K8/V4", Q4: "Q4"}
PEERS = {"ggml f16:f16": "ggml f16", "ggml q8_0:q4_0": "ggml q8_0/q4_0", "mlx f16": "mlx f16", "mlx q8:q4": "mlx q8/q4",
         "torch f32": "torch f32", "torch f16": "torch f16"}
MODEL, TEXT = "smollm2", "docs/ARCHITECTURE.md"
K = 1024


# ---------------------------------------------------------------- the test plan

PLAN = [("Standard BF16: unchanged behaviour", ["bf16"]),
        ("kv_bits=4: the quantized cache works", ["bits 4"]),
        ("kv_bits=8: the quantized cache works", ["bits 8"]),
        ("kv_bits=(8, 4): K 8 bits, V 4 bits", ["bits 8,4"]),
        ("kv_bits=(4, 2): K 4 bits, V 2 bits", ["bits 4,2"]),
        ("max_kv_size=128: the rotating cache works, 100 decode steps past max_size with keep=4", ["max size 128"]),
        ("max_kv_size=128, kv_bits=4, which crashed: 100 steps past the end, keep=4", ["max size 128, bits 4"]),
        ("max_kv_size=128, kv_bits=8: the same", ["max size 128, bits 8"]),
        ("max_kv_size=128, kv_bits=(8, 4): the same", ["max size 128, bits 8,4"]),
        ("max_kv_size=128, kv_bits=(4, 2): the same", ["max size 128, bits 4,2"]),
        ("meta_state round trip with the old 3 fields", ["meta_state of 3 fields"]),
        ("meta_state round trip with the new 5 fields", ["meta_state of 5 fields"]),
        ("to_quantized() after the cache has wrapped keeps offset and order",
         [f"quantized after the wrap, bits {bits}" for bits in ("4", "8", "8,4", "4,2")]),
        ("Repeated to_quantized() changes nothing", ["quantized twice"])]


def run_cases(run):
    arguments = ["--build", run.build, *(["--short"] if run.short else [])]
    return json.loads(run.output(run.python, ROOT / "bench/rotating_cases.py", *arguments))


def case_command(names):
    return f"~/.cache/quire/venv/bin/python bench/rotating_cases.py {shlex.join(names)}"


def case_figure(case):
    if "fields" in case:
        return f"Fields {', '.join(case['fields'])} come back; codes of the {case['same_codes']} tokens in full pages are equal."
    offset = f", offset {case['offset']}, {case['pages']} pages converted" if "offset" in case else ""
    return (f"Error {case['error']:.1e} of attention in {case['steps']} steps, the last over {case['seen']} tokens{offset};"
            f" allowed {case['bound']:.0e}.")


def worst(cases):
    return max(cases, key=lambda case: case.get("error", 0))


def plan_checks(cases):
    return [Check(text, all(cases[name]["ok"] for name in names), case_figure(worst([cases[name] for name in names])),
                  case_command(names)) for text, names in PLAN]


def missing_checks(reason):
    return [Check(text, None, reason, case_command(names)) for text, names in PLAN]


# ---------------------------------------------------------------- on a model


MODEL_KVS = {F16: "f16", "a8:a8": "8", "a4:a4": "4", "a8:a4": "(8, 4)", "a4:a2": "(4, 2)", SPLIT: "K8/V4", Q4: "Q4"}


def model_arguments(run, max_size):
    ctx, chunks = (80, 1) if run.short else (512, 4)
    kvs = [F16, "a8:a4"] if run.short else MODEL_KVS
    bound = ["--max-kv-size", max_size] if max_size else []
    return ["eval", "ppl", "-m", MODEL, "--text", TEXT, "--ctx", ctx, "--chunks", chunks, "--kv", ",".join(kvs), *bound,
            "-t", run.threads]


def measure_model(run):
    """{(max_kv_size, kv): result}"""
    rows = {}
    for max_size in (40,) if run.short else (0, 128):
        run.progress(f"001: {MODEL}" + (f", at most {max_size} tokens" if max_size else ""))
        rows.update({(max_size, r["kv"]): r for r in run.quire(*model_arguments(run, max_size))})
    return rows


def perplexity_change(rows, size, kv):
    """Beside f16 of the same size."""
    return rows[size, kv]["ppl"] / rows[size, F16]["ppl"] - 1


def model_table(rows):
    return Table(f"{MODEL} on a text, with and without a bound on the cache",
                 ["max_kv_size", "kv_bits", "Quire's --kv", "perplexity", "beside f16 of that size"],
                 [[str(size or "-"), MODEL_KVS[kv], kv, f"{r['ppl']:.2f}", f"{100 * perplexity_change(rows, size, kv):+.2f} %"]
                  for (size, kv), r in rows.items()],
                 "a8, a4 and a2 are mlx's formats, with groups of 64; K8/V4 and Q4 are Quire's own.")


def model_check(run, rows):
    """K of 8 bits must leave the model as it is; fewer bits must leave it working."""
    change = {key: abs(perplexity_change(rows, *key)) for key in rows}
    fine = [x for (_, kv), x in change.items() if kv in ("a8:a8", "a8:a4", SPLIT)]
    size = max(size for size, _ in rows)
    ok = max(fine) < 0.02 and max(change.values()) < 0.5 and all(r["fallbacks"] == 0 for r in rows.values())
    return Check(f"All of these on a model, with and without max_kv_size={size}", ok,
                 f"{MODEL}: perplexity changes by at most {100 * max(fine):.2f} % with K of 8 bits (allowed 2 %), by"
                 f" {100 * max(change.values()):.1f} % at worst.", run.command(model_arguments(run, size)))


def text_arguments(kv, n):
    return ["run", "-m", MODEL, "--chat", "-p", "Explain gravity in one sentence.", "--temp", "0", "-n", n, "--kv", kv,
            "-t", 1, "--quiet"]


def text_check(run):
    """The request shows 20 words of three configurations."""
    n = 4 if run.short else 24
    kvs = (F16, SPLIT) if run.short else NAMES
    texts = {kv: run.output(run.build / "bin/quire", *text_arguments(kv, n)).strip() for kv in kvs}
    same = {kv: text == texts[F16] for kv, text in texts.items() if kv != F16}
    others = ", ".join(f"{NAMES[kv]} {'is identical' if equal else 'differs'}" for kv, equal in same.items())
    return Check("Short generations are identical in all three configurations", all(same.values()),
                 f"{n} tokens of {MODEL}, greedy: {others}.", run.command(text_arguments(SPLIT, n)))


# ---------------------------------------------------------------- latency


def last_level_cache():
    """Bytes, or 32 MiB where the system does not tell."""
    try:
        size = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        size = 0
    return size if size > 0 else 32 << 20


def layers_for(ctx, bits=4.3125):
    """So many that the smallest cache is twice the last-level cache, and nothing is left in it
    when its turn comes again: in a model the weights push it out."""
    _, kv_heads, dim = map(int, SHAPE.split("x"))
    layer = ctx * kv_heads * dim * 2 * bits / 8
    return max(1, min(256, math.ceil(2 * last_level_cache() / layer)))


def latency_works(run):
    if run.short:
        return [Work("8x2x64", ctx, 1, 2) for ctx in (128, 256)]
    return [Work(SHAPE, ctx, 1, layers_for(ctx)) for ctx in (1 * K, 4 * K, 16 * K, 32 * K, 100 * K)]


def bench_arguments(run, work, kvs):
    return ["bench", "attn", "--shape", work.shape, "--ctx", work.ctx, "--layers", work.layers, "--kv", ",".join(kvs),
            "-t", run.threads, "--min-time", 0.02 if run.short else 0.7, "--no-check", "--no-limits"]


def measure_latency(run, works, peers, missing):
    """{(work, name): ms of 32 layers}. Quire and ggml take turns, and the best of each counts;
    others are measured once. A peer that fails is added to `missing`."""
    ms = {}

    def keep(work, name, value):
        ms[work, name] = min(ms.get((work, name), math.inf), LAYERS * value)

    for turn in range(1 if run.short else 2):
        for work in works:
            run.progress(f"001: attention over {work.ctx} tokens, turn {turn + 1}")
            for r in run.quire(*bench_arguments(run, work, NAMES)):
                keep(work, r["kv"], r["ms_best"])
            for name in PEERS:
                library, kind = name.split()
                if library not in peers or name in missing or (turn > 0 and library != "ggml"):
                    continue
                try:
                    keep(work, name, peers[library].measure(work, kind, run.threads))
                except subprocess.CalledProcessError as error:
                    missing[name] = f"failed at {context_name(work.ctx)}: {last_line(error.stderr)}"
    return ms


def last_line(text):
    lines = (text or "").strip().splitlines()
    return lines[-1] if lines else "no message"


def crossover(works, ms, split, f16):
    """The first context from which on `split` is faster than `f16` at every length, or None."""
    first = None
    for work in reversed(works):
        if (work, f16) not in ms or ms[work, split] >= ms[work, f16]:
            break
        first = work.ctx
    return first


def crossover_name(works, ms):
    first = crossover(works, ms, SPLIT, F16)
    if first is None:
        return "none of these lengths"
    return f"{context_name(works[0].ctx)} or below" if first == works[0].ctx else context_name(first)


def latency_table(works, ms, missing):
    names = [*NAMES, *(name for name in PEERS if any((work, name) in ms for work in works))]
    labels = {**{kv: f"Quire {name}" for kv, name in NAMES.items()}, **PEERS}
    rows = [[labels[name], *(cell(ms.get((work, name)), ms[work, F16]) for work in works)] for name in names]
    rows += [[name, *[f"missing: {reason}" if i == 0 else "-" for i in range(len(works))]] for name, reason in missing.items()]
    return Table(f"Attention of one token in {LAYERS} layers of {works[0].shape}: ms (in brackets: times as fast as Quire's f16)",
                 ["cache", *(context_name(work.ctx) for work in works)], rows,
                 "Time per layer times 32, the best of several runs through "
                 + ", ".join(f"{work.layers}" for work in works) + " layers, each with a cache of its own: all together"
                 " are larger than the processor's caches, as in a model. Attention alone: the matrices of a model cost"
                 " the same in every row.")


def cell(ms, f16):
    return "-" if ms is None else f"{ms:.1f} ({f16 / ms:.2f}x)"


def latency_checks(run, works, ms):
    command = run.command(bench_arguments(run, works[0], NAMES))
    ratios = [ms[work, F16] / ms[work, SPLIT] for work in works]
    listed = ", ".join(f"{ratio:.2f}x at {context_name(work.ctx)}" for work, ratio in zip(works, ratios))
    yield Check(f"K8/V4 is faster than f16 from {context_name(works[0].ctx)} on, where the request has 0.94x",
                None if run.short else min(ratios) > 1,
                f"Beside Quire's own f16: {listed}; the crossover is at {crossover_name(works, ms)}.", command)
    for name in ("ggml f16:f16", "torch f16"):
        if all((work, name) in ms for work in works):
            first = crossover(works, ms, SPLIT, name)
            figures = ", ".join(f"{ms[work, name] / ms[work, SPLIT]:.1f}x at {context_name(work.ctx)}" for work in works)
            yield Check(f"The same beside {PEERS[name]}", None if run.short else first == works[0].ctx, f"{figures}.",
                        "make bench PEERS=all")


def plot_latency(run, works, ms):
    colours = {F16: svg.OTHER, SPLIT: svg.QUIRE, Q4: svg.QUIRE_2, "ggml f16:f16": svg.PEER, "ggml q8_0:q4_0": svg.PEER_2,
               "mlx q8:q4": svg.PEER_3}
    labels = {**{kv: f"Quire {name}" for kv, name in NAMES.items()}, **PEERS}
    lines = [(labels[name], colour, [(work.ctx, ms[work, name]) for work in works if (work, name) in ms])
             for name, colour in colours.items()]
    curves.draw(lines, f"attention of one token, {LAYERS} layers of {works[0].shape}: ms", run.out / "001-latency.svg")
    return "001-latency.svg", "Attention of one token by context: f16, K8/V4 and Q4 of Quire beside ggml and mlx"


# ---------------------------------------------------------------- memory

HYBRID = ("32x2x256", 12)  # Qwen3.5-122B: 12 of its 48 layers have a KV cache


def inspect_arguments(shape, ctx, kv):
    return ["inspect", "--shape", shape, "--layers", 1, "--ctx", ctx, "--kv", kv]


def measure_memory(run):
    """{(shape, ctx, kv): bytes of all its layers}. Layers are equal: one is filled and counted."""
    works = [("8x2x64", 2, ctx) for ctx in (256, 512)] if run.short else [
        (SHAPE, LAYERS, ctx * K) for ctx in (1, 4, 16, 32, 64, 128)] + [(*HYBRID, 128 * K)]
    held = {}
    for shape, layers, ctx in works:
        for kv in NAMES:
            held[shape, ctx, kv] = layers * run.quire(*inspect_arguments(shape, ctx, kv))["kv_bytes"]
    return held


def size_text(n):
    return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"


def memory_table(held):
    rows = []
    for shape, ctx in dict.fromkeys((shape, ctx) for shape, ctx, _ in held):
        f16, split, q4 = (held[shape, ctx, kv] for kv in NAMES)
        model = "Qwen3.5-122B, 12 layers of 2 heads of 256, " if shape == HYBRID[0] else ""
        rows.append([model + context_name(ctx), *(size_text(x) for x in (f16, split, q4)),
                     f"{100 * (1 - split / f16):.0f} %", f"{100 * (1 - q4 / f16):.0f} %"])
    return Table(f"Memory of the cache, {LAYERS} layers of 8 KV heads of 128",
                 ["context", "f16", "K8/V4", "Q4", "K8/V4 saves", "Q4 saves"], rows,
                 "Bytes in use, counted by the library: scales, raw sinks, the open page and the raw rows of the last sealed"
                 " page are in them. One layer is filled and counted, the layers being equal.")


def memory_check(run, held):
    saved = {ctx: 1 - held[shape, ctx, SPLIT] / held[shape, ctx, F16] for shape, ctx, _ in held if shape != HYBRID[0]}
    ctx = max(saved)
    return Check("K8/V4 saves 38 % of the memory of f16", saved[ctx] >= 0.38 if not run.short else None,
                 f"{100 * saved[ctx]:.1f} % at {context_name(ctx)}, {100 * saved[min(saved)]:.1f} % at {context_name(min(saved))}.",
                 run.command(inspect_arguments(SHAPE, ctx, SPLIT)))


# ---------------------------------------------------------------- the reviewer's warnings


def tails_table(tails):
    kinds = list(tails["kurtosis"])
    return Table("Error of attention by the codec of K (relative L2, against fp64 over the rows as they came; V is exact)",
                 ["codec of K", *(f"{kind} (kurtosis {tails['kurtosis'][kind]:.0f})" for kind in kinds)],
                 [[codec, *(f"{errors[kind]:.4f}" for kind in kinds)] for codec, errors in tails["errors"].items()],
                 "Synthetic K. Outlier channels: 4 of 128 are 20 times as wide. Heavy tails: Student's t with 3 degrees of"
                 " freedom. kc8 is K of `k8v4`, km4 of `k4v4`; a8 and a4 are mlx's, q8_0 and q4_0 ggml's formats; vt8, tq4"
                 " and tqp4 rotate rows by a Hadamard matrix first.")


def tails_check(tails):
    """8 bits per channel must not suffer from what makes 4 bits fail."""
    errors = tails["errors"]["kc8"]
    worst_kind = max(errors, key=errors.get)
    return Check("K8 holds on K of high kurtosis (Qwen3.5), where K4 fails, without a rotation",
                 errors[worst_kind] <= 1.5 * errors["normal"],
                 f"K of K8/V4: error {errors['normal']:.4f} on normal K, {errors[worst_kind]:.4f} at worst ({worst_kind});"
                 f" mlx's 8 bits up to {max(tails['errors']['a8'].values()):.4f}, its 4 bits up to {max(tails['errors']['a4'].values()):.2f}.",
                 case_command(["heavy tails"]))


NOTES = [
    "Real models: `quire probe -m FILE` measures the kurtosis of K and V of every layer, and `--kv auto` chooses codecs by"
    " what they cost this model ([FIDELITY.md](FIDELITY.md)).",
    "Hybrid models (Qwen3.5 and others with recurrent layers): only attention layers have a KV cache, so only they are"
    " packed. In stock llama.cpp, through the plug-in, qwen35, qwen35moe, qwen3next, falcon-h1, jamba and granitehybrid keep"
    " their attention layers in pages and their recurrent state as it is ([LLAMA.md](LLAMA.md)). Quire's own engine does not"
    " run hybrid models and says so when it opens one.",
    "Quire packs a page when its 64 tokens are complete; a query sees its own page raw. So the newest tokens, 1 to 64 of"
    " them, are exact, where mlx-lm quantizes each token at once.",
]


# ---------------------------------------------------------------- the section


def cases_of(run):
    """-> the cases, or None and why there are none."""
    if not run.python.exists():
        return None, "No Python environment with mlx: run tools/setup bench."
    run.progress("001: the test plan")
    return run_cases(run), ""


def summary_of(checks):
    missed = [check.text for check in checks if check.ok is False]
    text = ("Quantized caches of bounded size, and K and V of different bits, work in every configuration of the request's"
            " test plan, also when a cache that has wrapped is quantized in place." if not missed else
            f"Not reached: {'; '.join(missed)}.")
    return text + " The model and the Apple GPU of the request are not here: latency is that of attention alone, on a CPU."


def answer(run):
    cases, reason = cases_of(run)
    checks = plan_checks(cases) if cases else missing_checks(reason)
    rows = measure_model(run)
    checks += [model_check(run, rows), text_check(run)]
    works = latency_works(run)
    peers, missing = find_peers(set() if run.short else {"ggml", "mlx", "torch"})
    ms = measure_latency(run, works, peers, missing)
    checks += latency_checks(run, works, ms)
    run.progress("001: memory")
    held = measure_memory(run)
    checks.append(memory_check(run, held))
    tables = [latency_table(works, ms, missing), memory_table(held), model_table(rows)]
    if cases:
        checks.append(tails_check(cases["heavy tails"]))
        tables.append(tails_table(cases["heavy tails"]))
    data = {"cases": cases, "ms": [{"ctx": work.ctx, "layers": work.layers, "cache": name, "ms": value}
                                   for (work, name), value in ms.items()],
            "memory": [{"shape": shape, "ctx": ctx, "kv": kv, "bytes": value} for (shape, ctx, kv), value in held.items()],
            "model": [{"max_kv_size": size, **r} for (size, _), r in rows.items()], "missing": missing}
    return Section("001", "Rotating quantized caches, and K and V of different bits", summary_of(checks), checks, tables,
                   [plot_latency(run, works, ms)], NOTES, data)
