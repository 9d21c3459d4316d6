"""Request 004: a batch of quantized histories. Qwen3-0.6B's shape, two histories of about 50,000 tokens decoding together."""

import dataclasses

import svg
from answering import Check, Failed, Section, Table, gib, times
from attention_peers import find_peers
from made_models import made
from peer_ggml import Work

# What the request measured on an M1 Max with mlx: (KV bytes, peak, tokens/s).
REPORTED = {"f16": ("11.48 GB", "25.00 GB", "25.70"), "4 bits": ("3.23 GB", "13.71 GB", "65.91")}
REPORTED_PREFILL = 131.87 / 210.83  # seconds in f16 / in 4 bits
LEAST_SAVING, LEAST_SPEEDUP, LEAST_PEAK = 3.55, 2.56, 25.00 / 13.71
KV = "k4v4"  # Quire's own 4 bits, which the criteria are judged by
NAMES = {"none": "f16", "mlx4": "4 bits, groups of 64, as the request", "k4v4": "4 bits, k4v4"}


@dataclasses.dataclass
class Plan:
    model: str
    layer: str  # of attention alone
    depths: tuple
    token_bytes: int  # of one token in f16, all layers
    gen: int
    prefill: tuple  # (depth, rows)


FULL = Plan("qwen3-0.6b", "16x8x128", (50000, 49872), 28 * 8 * 128 * 2 * 2, 16, (4096, 512))
SHORT = Plan("qwen3-tiny", "4x2x64", (500, 436), 2 * 2 * 64 * 2 * 2, 2, (128, 64))


def free_memory():
    """Bytes, or None where Linux does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":") for line in file)
    except OSError:
        return None
    return int(lines["MemAvailable"].split()[0]) * 1024


def fitted(plan):
    """The plan, with histories halved until their f16 cache fits into the memory of this machine."""
    free = free_memory()
    while free and 1.2 * sum(plan.depths) * plan.token_bytes > free:
        plan = dataclasses.replace(plan, depths=tuple(depth // 2 for depth in plan.depths))
    return plan


# ---------------------------------------------------------------- measuring


def batch_args(plan, kv):
    return ["bench", "model", "-m", made(plan.model), "--kv", kv, "--depth", ",".join(map(str, plan.depths)), "--fill",
            "--gen", plan.gen, "--prompt", 0]


def measure_batches(run, plan):
    """{kv: result}; each in a process of its own, because its peak memory counts."""
    results = {}
    for kv in NAMES:
        run.progress(f"004: {plan.depths[0]} and {plan.depths[1]} tokens, {kv}")
        results[kv] = run.quire(*batch_args(plan, kv), "-t", run.threads)
    return results


def measure_prefill(run, plan):
    depth, rows = plan.prefill
    args = ["bench", "model", "-m", made(plan.model), "--kv", ",".join(NAMES), "--depth", depth, "--fill", "--gen", 0,
            "--prompt", rows]
    run.progress("004: prefill")
    return {r["kv"]: r["pp_tps"] for r in run.quire(*args, "-t", run.threads)}, run.command(args)


def measure_operations(run, plan):
    args = ["bench", "ops", "--seqs", len(plan.depths), "--ctx", plan.depths[0] // 64 * 64, "--kv", KV, "--to", "k4v2"]
    run.progress("004: merge, extract, filter, extend")
    return run.quire(*args), run.command(args)


def measure_mlx(run, plan):
    """Attention of one layer over one history, in mlx on the CPU: {type: ms}, or why not."""
    run.progress("004: attention of one layer, mlx")
    peers, missing = find_peers(["mlx"])
    if missing:
        return {}, f"mlx is not here: {missing['mlx']}."
    work = Work(plan.layer, plan.depths[0], 1)
    return {f"mlx {peers['mlx'].version} {kind}": peers["mlx"].measure(work, kind, run.threads) for kind in ("f16", "q4")}, ""


def measure_attention(run, plan):
    args = ["bench", "attn", "--shape", plan.layer, "--ctx", plan.depths[0], "--kv", ",".join(NAMES), "--no-check",
            "--no-limits"]
    run.progress("004: attention of one layer, Quire")
    return {f"Quire {r['kv']}": r["ms_best"] for r in run.quire(*args, "-t", run.threads)}, run.command(args)


# ---------------------------------------------------------------- checks


def batch_checks(run, plan, results):
    none, packed = results["none"], results[KV]
    command = run.command(batch_args(plan, KV))
    smaller, faster, peak = (ratio(results, KV) for ratio in (saving, speedup, less_peak))
    return [
        Check(f"KV cache at least {LEAST_SAVING}x smaller than f16", smaller >= LEAST_SAVING,
              f"{gib(none['kv_bytes'])} to {gib(packed['kv_bytes'])} with {KV}: {times(smaller)}.", command),
        Check(f"Decode throughput at least {LEAST_SPEEDUP}x", faster >= LEAST_SPEEDUP,
              f"{none['tg_tps']:.2f} to {packed['tg_tps']:.2f} tokens/s: {times(faster)}.", command),
        Check(f"Peak memory at least {LEAST_PEAK:.2f}x lower", peak >= LEAST_PEAK,
              f"{gib(none['peak_rss'])} to {gib(packed['peak_rss'])}: {times(peak)}, the model included.", command),
        Check("Two histories of different lengths decode in one step, from the packed cache",
              all(r["fallbacks"] == 0 and r["shadow_bytes"] == 0 for r in results.values()),
              f"Histories of {plan.depths[0]} and {plan.depths[1]} tokens; no padding is stored, 0 fallbacks, 0 bytes of raw"
              " copies.", command)]


def saving(results, kv):
    return results["none"]["kv_bytes"] / results[kv]["kv_bytes"]


def speedup(results, kv):
    return results[kv]["tg_tps"] / results["none"]["tg_tps"]


def less_peak(results, kv):
    return results["none"]["peak_rss"] / results[kv]["peak_rss"]


def operation_check(ops, step_us, command):
    us = {name: ops["us_" + name] for name in ("merge", "extract", "filter", "extend")}
    share = sum(us.values()) / step_us
    return Check("merge, extract, filter and extend between steps, in less than 1 % of a step", share < 0.01,
                 f"Microseconds for {ops['seqs']} histories of {ops['ctx']} tokens:"
                 f" {', '.join(f'{name} {t:.1f}' for name, t in us.items())}; a step takes {step_us:,.0f}. They copy no rows.",
                 command)


def prefill_check(prefill, command):
    ratio = prefill[KV] / prefill["none"]
    return Check("Quantizing costs prefill less than in the request (0.63x of f16's speed)", ratio >= REPORTED_PREFILL,
                 f"{prefill['none']:.1f} tokens/s in f16, {prefill[KV]:.1f} with {KV}: {times(ratio)}.", command)


def test_check(run):
    """The unit tests of lists, where they are built (make answers builds them)."""
    program = run.build / "tests/test_list"
    text = "Operations give each history's own bits; masks of batched grouped-query attention with left padding"
    cases = ("`left_padding` and `mask_of_kv_heads` hold the case that failed in the request: masks for KV heads, shared by"
             " the query heads of a group, over left-padded rows")
    if not program.exists():
        return Check(text, None, f"The tests are not built here: run `make check`. {cases}.", "make check")
    try:
        run.output(program)
    except Failed as error:
        return Check(text, False, str(error).splitlines()[-1], "build/tests/test_list")
    return Check(text, True, f"Every case passes, bit for bit; {cases}.", "build/tests/test_list")


# ---------------------------------------------------------------- tables and plot


def batch_table(plan, results, prefill):
    rows = []
    for kv, r in results.items():
        reported = REPORTED["f16" if kv == "none" else "4 bits"]
        rows.append([f"Quire {kv}", NAMES[kv], gib(r["kv_bytes"]), gib(r["peak_rss"]), f"{r['tg_tps']:.2f}",
                     times(saving(results, kv)), times(speedup(results, kv)), f"{prefill[kv]:.1f}",
                     " / ".join(reported) if kv in ("none", "mlx4") else ""])
    return Table("Two histories decoding together",
                 ["cache", "", "KV", "peak memory", "decode tokens/s", "smaller", "faster", f"prefill tokens/s at {plan.prefill[0]}",
                  "the request: KV / peak / tokens/s"], rows,
                 "Tokens/s count both histories. The request's figures are from mlx on an M1 Max's GPU, with generation of"
                 " 5,000 tokens each.")


def attention_table(plan, ours, mlx, missing):
    rows = [[name, f"{ms:.2f}"] for name, ms in {**ours, **mlx}.items()]
    return Table(f"Decode attention of one layer ({plan.layer}) over {plan.depths[0]} tokens", ["cache", "ms"], rows,
                 missing or "mlx runs on the CPU here, where its quantized product is not its strong side.")


def plot(run, results):
    name = "004-batch.svg"
    groups = [(title, [(kv, ratio(results, kv), "Quire") for kv in results if kv != "none"])
              for title, ratio in (("times less KV", saving), ("times less peak memory", less_peak),
                                   ("decode, times f16", speedup))]
    groups = [(title, bars + [("the request, 4 bits", asked, "mlx, M1 Max")])
              for (title, bars), asked in zip(groups, (LEAST_SAVING, LEAST_PEAK, LEAST_SPEEDUP))]
    svg.horizontal_bars(groups, "two histories of about 50,000 tokens, relative to f16 (log scale)",
                        {"Quire": svg.QUIRE, "mlx, M1 Max": svg.PEER}, run.out / name)
    return name, "KV, peak memory and decode speed of two histories, relative to f16"


def answer(run):
    plan = fitted(SHORT if run.short else FULL)
    results = measure_batches(run, plan)
    prefill, prefill_command = measure_prefill(run, plan)
    ops, ops_command = measure_operations(run, plan)
    ours, attention_command = measure_attention(run, plan)
    mlx, missing = measure_mlx(run, plan)
    notes = ["The model has Qwen3-0.6B's shape (28 layers, 16 query heads over 8 KV heads of 128) with made Q4_0 weights and"
             " a vocabulary of 320 tokens.",
             "Histories are filled with synthetic rows (`--fill`), sealed by the real codecs; a prefill of 100,000 tokens"
             " takes hours here. Peak memory is the process's, the weights included, which are held twice: mapped from the"
             " file, and in the layout that ggml multiplies fastest.",
             f"The request's own format, 4 bits with a scale and a bias for every 64 channels (`mlx4`), takes 4.5 bits per"
             f" element: {times(saving(results, 'mlx4'))} smaller and {times(speedup(results, 'mlx4'))} as fast as f16 here."
             f" `{KV}`, which needs fewer parameters to unpack, is judged above.",
             f"Attention alone: `{attention_command}`."]
    if plan.depths[0] < FULL.depths[0] and not run.short:
        notes.append(f"This machine cannot hold the f16 cache of 100,000 tokens: histories of {plan.depths[0]} and"
                     f" {plan.depths[1]} tokens instead.")
    return Section(
        "004", "a batch of quantized histories",
        "Histories in a quantized cache could not be batched: merging them failed, and a mask did not fit grouped-query"
        " attention. In Quire a batch is a list of sequences of any lengths; each keeps its own packed pages.",
        [*batch_checks(run, plan, results), prefill_check(prefill, prefill_command),
         operation_check(ops, 1e6 * len(plan.depths) / results[KV]["tg_tps"], ops_command), test_check(run)],
        [batch_table(plan, results, prefill), attention_table(plan, ours, mlx, missing)], [plot(run, results)], notes,
        {"batch": results, "prefill_tps": prefill, "operations": ops, "attention_ms": {**ours, **mlx}})
