"""Request 000: every KV codec must be read at decode. Gemma 4 E2B's shape, all codecs, 4K to 64K tokens."""

import dataclasses
import itertools
import pathlib
import statistics
import tempfile

import svg
from answering import Check, Section, Table, mib, span, times
from attention_peers import find_peers
from curves import context_name
from made_models import made
from peer_ggml import Work

# Codecs that no preset has, each with a partner of its own bits for the side that it does not serve.
OTHER_PAIRS = ("kc4:vt4", "kc3:vt3", "kc2:vt2", "vt8:vt8", "tq2:tq2", "tqp4:tq4", "tqp3:tq3", "a8g32:a8g32",
               "a8g128:a8g128", "a4g32:a4g32", "a4g128:a4g128", "a2g32:a2g32", "a2:a2", "a2g128:a2g128")
NEEDLE_KVS = "k8v8,k8v4,k4v4,tq4,rot_k_tq4v,mlx4"
REPORTED = {"k8v4": "1.20x", "k8v8": "1.25x"}  # resident KV relative to `none` at 64K, in the request
PROMPTS = "The history of the lighthouse begins\nTo bake bread you need\n"
LEAST_SAVING, LEAST_SPEEDUP = 2.0, 1.5


@dataclasses.dataclass
class Plan:
    model: str
    layer: str  # the shape of a global layer, for attention alone
    depths: tuple
    gen: int
    others: tuple  # pairs besides the presets, measured at the largest depth
    needle_kvs: str
    needle_ctx: int
    predict: int


FULL = Plan("gemma4-e2b", "8x1x512", (4096, 16384, 65536), 16, OTHER_PAIRS, NEEDLE_KVS, 2048, 32)
SHORT = Plan("gemma4-tiny", "8x1x128", (128, 256, 512), 2, OTHER_PAIRS[:1], "k4v4", 200, 4)


# ---------------------------------------------------------------- measuring


def model_args(plan, names, depth):
    return ["bench", "model", "-m", made(plan.model), "--kv", ",".join(names), "--depth", depth, "--fill", "--gen",
            plan.gen, "--prompt", 0]


def between_raw(names):
    """`none`, up to three codecs, `none`, and so on: machines change their speed within a long list."""
    codecs = [kv for kv in names if kv != "none"]
    return [kv for i in range(0, len(codecs), 3) for kv in ("none", *codecs[i:i + 3])] + ["none"]


def beside_raw(results):
    """{kv: result}, `none` first with its median speed. "speedup" is relative to the mean of the `none` before and the
    one after."""
    raw = [i for i, r in enumerate(results) if r["kv"] == "none"]
    none = dict(results[raw[0]], tg_tps=statistics.median(results[i]["tg_tps"] for i in raw), speedup=1.0)
    found = {"none": none}
    for before, after in itertools.pairwise(raw):
        base = statistics.mean((results[before]["tg_tps"], results[after]["tg_tps"]))
        found.update((r["kv"], dict(r, speedup=r["tg_tps"] / base)) for r in results[before + 1:after])
    return found


def measure_depths(run, plan, presets):
    """{depth: {kv: result}}."""
    by_depth = {}
    for depth in plan.depths:
        names = presets + (list(plan.others) if depth == plan.depths[-1] else [])
        run.progress(f"000: {len(names)} codecs at {context_name(depth)} tokens")
        by_depth[depth] = beside_raw(run.quire(*model_args(plan, between_raw(names), depth), "-t", run.threads))
    return by_depth


def attention_alone(run, plan, presets):
    """One global layer beside ggml's attention: [(name, ms)], and what is missing."""
    ctx = plan.depths[-1]
    args = ["bench", "attn", "--shape", plan.layer, "--ctx", ctx, "--kv", ",".join(presets), "--no-check",
            "--no-limits", "-t", run.threads]
    run.progress("000: attention of one global layer, beside ggml")
    rows = [(f"Quire {r['kv']}", r["ms_best"]) for r in run.quire(*args)]
    if run.short:  # which must not build a library
        return rows, "A short run does without ggml.", run.command(args)
    peers, missing = find_peers(["ggml"])
    if missing:
        return rows, f"ggml is not here: {missing['ggml']}.", run.command(args)
    rows += [(f"ggml {types}", peers["ggml"].measure(Work(plan.layer, ctx, 1), types, run.threads))
             for types in ("f16:f16", "q8_0:q8_0", "q4_0:q4_0")]
    return rows, "", run.command(args)


def coherence(run, plan, presets):
    """Greedy texts of the real Gemma 3 beside its raw cache."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = pathlib.Path(folder) / "prompts"
        prompts.write_text(PROMPTS)
        args = ["eval", "agree", "-m", "gemma3", "-n", plan.predict, "--kv", ",".join(presets)]
        run.progress("000: greedy texts of Gemma 3")
        results = run.quire(*args, "--prompts", prompts, "-t", run.threads)
    return results if isinstance(results, list) else [results], run.command(args)


def needles(run, plan):
    args = ["eval", "niah", "-m", "gemma3", "--ctx", plan.needle_ctx, "--lengths", 1, "--depths", 5 if not run.short else 1,
            "--together", "--kv", plan.needle_kvs]
    run.progress("000: needles in Gemma 3")
    results = run.quire(*args, "-t", run.threads)
    return results if isinstance(results, list) else [results], run.command(args)


# ---------------------------------------------------------------- checks


def global_layers(result):
    return [layer for layer in result["layers"] if layer["window"] == 0]


def read_share(result, gen):
    """Packed bytes that decoding read, relative to the packed bytes that the global layers hold, for each token. Layers
    that share a cache read it too, so their source counts once for each of them."""
    layers = global_layers(result)
    held = [layer["sealed_bytes"] for layer in layers]
    source = [b for b in held if b][-1]
    return sum(layer["packed_read"] for layer in layers) / gen / sum(b or source for b in held)


def is_inert(result):
    return result["fallbacks"] > 0 or result["shadow_bytes"] > 0 or any(
        layer["packed_read"] == 0 for layer in global_layers(result))


def windowed_layers(result):
    """What must not depend on the codec."""
    keys = ("kv", "window", "kernel", "sealed_bytes", "raw_bytes", "packed_read", "raw_read")
    return [tuple(layer[key] for key in keys) for layer in result["layers"] if layer["window"] > 0]


def named(kvs):
    return ", ".join(kvs) or "none"


def cache_checks(run, plan, deepest):
    depth = plan.depths[-1]
    command = run.command(model_args(plan, between_raw(deepest), depth))
    none = deepest["none"]
    packed = {kv: r for kv, r in deepest.items() if kv != "none"}
    saving = {kv: none["kv_bytes"] / r["kv_bytes"] for kv, r in packed.items()}
    speedup = {kv: r["speedup"] for kv, r in packed.items()}
    inert = [kv for kv, r in packed.items() if is_inert(r)]
    shares = [read_share(r, plan.gen) for r in packed.values()]
    eight = [kv for kv, r in packed.items() if r["bits"] >= 8]
    fewer = [kv for kv, r in packed.items() if r["bits"] < 8]
    slow = [kv for kv in packed if speedup[kv] < LEAST_SPEEDUP]
    odd = [kv for kv, r in packed.items() if windowed_layers(r) != windowed_layers(none)]
    where = f"at {context_name(depth)}"
    checks = [
        Check("Global layers are stored quantized and read by fused attention at decode; no codec is inert",
              not inert, f"{len(packed)} of {len(packed)} codecs and pairs: a token reads {span(shares)} of the packed"
              f" bytes of its layers, 0 fallbacks, 0 bytes of raw copies." if not inert else f"Inert: {named(inert)}.",
              command),
        Check(f"No codec holds more than `none` {where}", min(saving.values()) > 1,
              f"{mib(none['kv_bytes'])} raw; the codecs hold {span(saving.values())} less.", command),
        Check(f"At least {LEAST_SAVING:g}x less resident KV {where}, codecs of fewer than 8 bits per element",
              min(saving[kv] for kv in fewer) >= LEAST_SAVING,
              f"{span([saving[kv] for kv in fewer])}, {len(fewer)} codecs.", command)]
    if eight:
        checks.append(Check(
            f"At least {LEAST_SAVING:g}x less resident KV {where}, codecs of 8 bits",
            min(saving[kv] for kv in eight) >= LEAST_SAVING,
            f"{span([saving[kv] for kv in eight])}: with its scales an 8-bit value takes"
            f" {span([packed[kv]['bits'] for kv in eight], '{:.2f}'.format)} bits, and the windowed layers stay raw.",
            command))
    checks += [
        Check(f"Decode is not slower than `none` {where}", min(speedup.values()) >= 1,
              f"{none['tg_tps']:.2f} tokens/s raw; the codecs are {span(speedup.values())} as fast.", command),
        Check(f"Decode is at least {LEAST_SPEEDUP:g}x as fast {where}, every codec of 8 bits or fewer", not slow,
              f"{span(speedup.values())}." + (f" Below it: {named(slow)}." if slow else ""), command),
        Check("No regression on the windowed (SWA) layers", not odd,
              f"The {len(windowed_layers(none))} windowed layers hold the same raw bytes, read by the same kernel, with"
              f" every codec." if not odd else f"They differ with {named(odd)}.", command)]
    return checks


def none_check(attention, missing, command):
    ms = dict(attention)
    if missing:
        return Check("No regression on `none`", None, missing, command)
    ratio = ms["ggml f16:f16"] / ms["Quire none"]
    return Check("No regression on `none`", ratio >= 1,
                 f"A global layer takes {ms['Quire none']:.1f} ms raw, {ms['ggml f16:f16']:.1f} ms in ggml (f16):"
                 f" {times(ratio)} as fast.", command)


def is_coherent(result):
    return (result["repeat"] < result["repeat_raw"] + 0.35
            and (not result["ppl_raw"] or 0.8 < result["ppl"] / result["ppl_raw"] < 1.25))


def quality_checks(agreed, agree_command, found, niah_command):
    bad = [r["kv"] for r in agreed if not is_coherent(r)]
    same = sum(r["same"] == r["prompts"] for r in agreed)
    lost = sum(r["lost"] for r in found)
    return [
        Check("Coherence (temp = 0, greedy), real Gemma 3 270M", not bad,
              f"{len(agreed)} codecs: {same} write the raw cache's texts word for word; perplexity of all texts"
              f" {span([r['ppl'] / r['ppl_raw'] for r in agreed])} of the raw cache's, no loops."
              + (f" Not coherent: {named(bad)}." if bad else ""), agree_command),
        Check(f"Long-context retrieval (NIAH), real Gemma 3 270M, {found[0]['ctx']} tokens", lost == 0,
              f"Of the {found[0]['found_raw']} facts of {found[0]['tried']} that the raw cache finds, "
              + ", ".join(f"{r['kv']} loses {r['lost'] or 'none'}" for r in found)
              + f". The model is unsure of them itself: it gives a fact {found[0]['p_mean_raw']:.2f} on average, and "
              + ", ".join(f"{r['p_mean']:.2f} with {r['kv']}" for r in found) + ".", niah_command)]


# ---------------------------------------------------------------- tables and plot


def preset_table(plan, by_depth, presets):
    header = ["codec", "bits"] + [f"{what} {context_name(d)}" for d in plan.depths for what in ("KV,", "tokens/s,")]
    header += ["KV to none", "decode to none", "KV in the request"]
    deepest = by_depth[plan.depths[-1]]
    none, rows = deepest["none"], []
    for kv in deepest:
        r = deepest[kv]
        cells = []
        for depth in plan.depths:
            here = by_depth[depth].get(kv)
            cells += [mib(here["kv_bytes"]), f"{here['tg_tps']:.2f}"] if here else ["", ""]
        rows.append([kv, f"{r['bits']:.2f}", *cells, times(r["kv_bytes"] / none["kv_bytes"]),
                     times(r["speedup"]), REPORTED.get(kv, "")])
    return Table("Resident KV and decode by codec", header, rows,
                 "Codecs that no preset has are measured as pairs at the longest context only. `none` is measured before"
                 " and after every three codecs, whose speed is relative to these two; its own is the median. The last"
                 " column is what the request saw: larger than `none`, because a bf16 copy stayed beside the packed cache.")


def limit_note(plan, by_depth):
    """What a codec can change at all."""
    first, last = (1000 / by_depth[depth]["none"]["tg_tps"] for depth in (plan.depths[0], plan.depths[-1]))
    return (f"With `none` a token takes {first:.0f} ms at {context_name(plan.depths[0])} and {last:.0f} ms at"
            f" {context_name(plan.depths[-1])}. The first is nearly all weights, which no codec of the cache makes faster. The"
            " difference is attention, of 8 query heads over one KV head: each value that is read is multiplied 8 times, so"
            " that a processor without integer dot products (VNNI, AMX, SDOT) is limited by multiplying, not by reading. The"
            " second table has attention alone. Formats with a scale for every 32 values (q8_0, q4_0, a8g32, a4g32, a2g32) have"
            " 16 scales in a row of this head: the weights of V become integers once for each scale, 16 times instead of once."
            " They are here to read other programs' caches; the codecs of Quire have one scale per token or channel.")


def attention_table(plan, attention, missing):
    base = attention[0][1]
    rows = [[name, f"{ms:.2f}", times(base / ms)] for name, ms in attention]
    return Table(f"Decode attention of one global layer ({plan.layer}) at {context_name(plan.depths[-1])}",
                 ["cache", "ms", "to Quire none"], rows, missing)


def plot(run, plan, deepest):
    name = "000-decode.svg"
    none = deepest["none"]
    bars = [(kv, r["speedup"], "decode speed") for kv, r in deepest.items() if kv != "none"]
    saved = [(kv, none["kv_bytes"] / r["kv_bytes"], "smaller KV") for kv, r in deepest.items() if kv != "none"]
    svg.horizontal_bars([("tokens/s relative to none", bars), ("times less KV than none", saved)],
                        f"Gemma 4 E2B's shape at {context_name(plan.depths[-1])} tokens (log scale)",
                        {"decode speed": svg.QUIRE, "smaller KV": svg.QUIRE_2}, run.out / name)
    return name, "Decode speed and resident KV of every codec, relative to the raw cache"


def answer(run):
    plan = SHORT if run.short else FULL
    presets = [p["name"] for p in run.quire("codecs")["presets"]]
    by_depth = measure_depths(run, plan, presets)
    deepest = by_depth[plan.depths[-1]]
    attention, missing, attention_command = attention_alone(run, plan, presets)
    judged = presets if not run.short else ["k4v4"]
    agreed, agree_command = coherence(run, plan, judged)
    found, niah_command = needles(run, plan)
    return Section(
        "000", "fused decode that reads the quantized cache",
        "A runtime kept a bf16 copy of the cache beside the packed one: 18 of its 25 codecs changed nothing at decode and"
        " made the cache larger. In Quire there is no copy. A page is packed when its 64th token arrives, and attention"
        " reads the packed page.",
        [*cache_checks(run, plan, deepest), none_check(attention, missing, attention_command),
         *quality_checks(agreed, agree_command, found, niah_command)],
        [preset_table(plan, by_depth, presets), attention_table(plan, attention, missing)],
        [plot(run, plan, deepest)],
        [limit_note(plan, by_depth),
         "The model has Gemma 4 E2B's shape (35 layers, 15 of which store K and V; 7 global ones, 3 of which store; 8"
         " query heads over 1 KV head of 512; window 512) with made Q4_0 weights and a vocabulary of 320 tokens, so a"
         " step costs no 262,144-row output matrix.",
         "The cache is filled with synthetic rows (`--fill`), sealed by the real codecs: a prefill of 64K tokens would take"
         " hours here. Quality is measured on the real Gemma 3 270M instead."],
        {"depths": {str(d): list(r.values()) for d, r in by_depth.items()}, "attention_ms": dict(attention),
         "agree": agreed, "niah": found})
