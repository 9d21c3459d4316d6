"""Request 002: pages that are quantized when they are written. Peak memory of prefill, quality, batching, save and restore."""

import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.request

import svg
from answering import Check, Failed, Section, Table, mib
from curves import context_name, label_places
from made_models import made
from memory_trace import ProgramFailed, Unavailable, peak, trace
from programs import ROOT

MIB = 1 << 20
KV = "k4v4"
BOUND_SLACK = 0.02  # of the bound
REST_SLACK = 2 * MIB  # of what is not cache: the allocator, page tables, a thread's stack
END_SECONDS = 0.5  # of a program that frees its memory
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")  # of every Debian machine
REPORTED = {32768: ("23.55 GB", "20.92 GB"), 131072: ("31.86 GB", "31.59 GB")}  # Q4 and fp16 peaks in the request


@dataclasses.dataclass
class Plan:
    large: str  # the model whose cache is filled
    contexts: tuple
    rows: int  # computed by the large model at the end of the filled context
    trace_context: int
    chunks: int
    ctx: int  # of perplexity
    predict: int


FULL = Plan("qwen3-0.6b", (32768, 131072), 64, 16384, 4, 1024, 24)
SHORT = Plan("qwen3-tiny", (256, 512), 64, 256, 1, 128, 6)


def words(first, n):
    """A piece of the licence that is on every Debian machine; of Quire's own where it is not."""
    source = TEXT if TEXT.exists() else ROOT / "LICENSE"
    return " ".join(source.read_text().split()[first:first + n])


# ---------------------------------------------------------------- memory


def prefill_args(context):
    return ["bench", "model", "-m", made("prefill-tiny"), "--kv", KV, "--depth", context, "--gen", 0, "--prompt", 0]


def traced(run, args):
    output, samples = trace([run.build / "bin/quire", *args, "-t", run.threads, "--json"])
    return json.loads(output), samples


def measure_prefill(run, plan):
    """A real prefill by a small model: {context: (result, samples)}."""
    found = {}
    for context in sorted({*plan.contexts, plan.trace_context}):
        run.progress(f"002: prefill of {context_name(context)} tokens")
        found[context] = traced(run, prefill_args(context))
    return found


def filled_args(plan, context, kv):
    return ["bench", "model", "-m", made(plan.large), "--kv", kv, "--depth", context - plan.rows, "--fill", "--gen", 0,
            "--prompt", plan.rows, "--weights", "file"]


def measure_filled(run, plan):
    """A large cache, filled, with the last rows computed by the model: {context: result with `bound`}."""
    found = {}
    size = made(plan.large).stat().st_size
    for context in plan.contexts:
        run.progress(f"002: {context_name(context)} tokens of {plan.large}")
        result = run.quire(*filled_args(plan, context, KV), "-t", run.threads)
        # Bytes of a token in the codec, from those of a token in bf16.
        token = result["kv_bytes_bf16"] / (context - plan.rows) * result["bits"] / 16
        found[context] = {**result, "bound": size + context * token, "model": size, "token": token}
    return found


def llama_trace(run, plan, kind):
    """llama.cpp's own llama-bench on the same prefill: samples."""
    program = run.output(ROOT / "tools/build-llama", "--bench").strip()
    run.progress(f"002: prefill of {context_name(plan.trace_context)} tokens, llama.cpp {kind}")
    return trace([program, "-m", made("prefill-tiny"), "-ctk", kind, "-ctv", kind, "-fa", "on", "-t", run.threads, "-p",
                  plan.trace_context, "-n", 0, "-r", 1, "--no-warmup", "-o", "json"])[1]


def llama_traces(run, plan):
    """{kind: samples}, and why not. Building llama-bench takes minutes, once, so a short run does without."""
    if run.short:
        return {}, "A short run does without llama.cpp."
    try:
        return {kind: llama_trace(run, plan, kind) for kind in ("f16", "q4_0")}, ""
    except (Failed, ProgramFailed) as error:
        return {}, f"llama.cpp is not here: {str(error).splitlines()[-1]}"


def spike(samples):
    """How far private memory falls after it has risen, before the program ends and frees it all."""
    until = samples[-1][0] - END_SECONDS
    highest = fall = 0
    for seconds, found in samples:
        if seconds <= until:
            highest = max(highest, found["RssAnon"])
            fall = max(fall, highest - found["RssAnon"])
    return fall


def reserved_growth(samples):
    """Virtual data between a tenth of the run and its peak: memory that was asked for in the middle of the prefill."""
    begin = samples[len(samples) // 10][1]["VmData"]
    return peak(samples, "VmData") - begin


def memory_checks(run, plan, prefill, filled):
    first, last = plan.contexts
    rest = {c: peak(samples, "RssAnon") - result["kv_bytes"] for c, (result, samples) in prefill.items()}
    grown = rest[last] - rest[first]
    small, samples = prefill[last]
    reserved = reserved_growth(samples)
    raw = small["open_bytes"] + small["last_raw_bytes"] + small["sink_bytes"]
    command = run.command(prefill_args(last))
    checks = [
        Check("KV cache is pre-allocated in the packed format before prefill starts", reserved <= REST_SLACK,
              f"From a tenth of the prefill of {context_name(last)} tokens on, the process asks for {mib(reserved)} more.",
              command),
        Check("Tokens are quantized directly; no fp16 intermediate of the prefix",
              small["shadow_bytes"] == 0 and abs(grown) <= REST_SLACK,
              f"Besides the cache the process holds {mib(rest[first])} at {context_name(first)}, {mib(rest[last])} at"
              f" {context_name(last)} tokens; raw rows at the end: {mib(raw)}.", command),
        Check("No growth spikes during prefill", spike(samples) <= REST_SLACK,
              f"Private memory never falls by more than {mib(spike(samples))} while the prefill runs (plot).", command)]
    for context in plan.contexts:
        r = filled[context]
        over = r["peak_rss"] / r["bound"] - 1
        checks.append(Check(f"Peak at {context_name(context)} at most model + tokens x bytes per token, within 2 %",
                            over <= BOUND_SLACK,
                            f"Peak {mib(r['peak_rss'])}, bound {mib(r['bound'])}: {100 * over:+.1f} %,"
                            f" {mib(r['peak_rss'] - r['bound'])}, which do not grow with the context:"
                            f" {mib(r['compute_bytes'])} of them compute a step of 512 rows, the rest is the program.",
                            run.command(filled_args(plan, context, KV))))
    r = filled[last]
    checks.append(Check("KV memory reduced by at least 44 % against fp16", r["kv_bytes"] <= 0.56 * r["kv_bytes_bf16"],
                        f"{mib(r['kv_bytes_bf16'])} to {mib(r['kv_bytes'])}: {100 - 100 * r['kv_bytes'] / r['kv_bytes_bf16']:.0f}"
                        " % less.", run.command(filled_args(plan, last, KV))))
    return checks


def memory_table(plan, filled):
    rows = []
    for context in plan.contexts:
        r = filled[context]
        rows.append([context_name(context), mib(r["peak_rss"]), mib(r["bound"]), mib(r["model"]), mib(r["kv_bytes"]),
                     mib(r["model"] + r["kv_bytes_bf16"]), *REPORTED.get(context, ("", ""))])
    return Table(f"Peak memory, {plan.large}'s shape, {KV}",
                 ["context", "peak", "bound", "of it: model", "KV", "model + KV in f16", "the request: Q4 peak", "fp16 peak"],
                 rows, "In the request the 4-bit cache saved nothing at its peak, because the fp16 rows were still there.")


# ---------------------------------------------------------------- quality


def perplexities(run, plan):
    text = TEXT if TEXT.exists() else ROOT / "LICENSE"
    args = ["eval", "ppl", "-m", "smollm2", "--text", text, "--ctx", plan.ctx, "--chunks", plan.chunks, "--kv",
            f"none,{KV},mlx4,q4_0,tq4"]
    run.progress("002: perplexity")
    shown = run.command(args).replace(f" {text.name} ", f" {text} ") if text == TEXT else run.command(args)
    return {r["kv"]: r for r in run.quire(*args, "-t", run.threads)}, shown


def quality_checks(ppl, command):
    none = ppl["none"]["ppl"]
    checks = []
    for other, what in (("mlx4", "mlx's QuantizedKVCache arithmetic, 4 bits"), ("q4_0", "llama.cpp's q4_0 arithmetic")):
        ratio = ppl[KV]["ppl"] / ppl[other]["ppl"]
        checks.append(Check(f"No quality regression against {what}: PPL within 0.1 %", ratio <= 1.001,
                            f"{KV} ({ppl[KV]['bits']:.2f} bits) {ppl[KV]['ppl']:.3f}, {other} ({ppl[other]['bits']:.2f} bits)"
                            f" {ppl[other]['ppl']:.3f}: {100 * (ratio - 1):+.2f} %.", command))
    ratio = ppl[KV]["ppl"] / none
    checks.append(Check("No quality regression against fp16: PPL within 1 %", ratio <= 1.01,
                        f"{none:.3f} to {ppl[KV]['ppl']:.3f}: {100 * (ratio - 1):+.2f} %.", command))
    ratio = ppl["tq4"]["ppl"] / none
    checks.append(Check("Works with Hadamard rotation", ratio <= 1.01,
                        f"{KV} rotates V, tq4 rotates K and V ({100 * (ratio - 1):+.2f} % PPL); attention reads the rotated"
                        " codes, the queries are rotated instead.", command))
    return checks


# ---------------------------------------------------------------- batching, save and restore


@contextlib.contextmanager
def serving(run):
    """A server on a free port -> its address."""
    command = [run.build / "bin/quire", "serve", "-m", "smollm2", "--kv", KV, "--port", 0, "--exact", "-t", run.threads]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=log)
        try:
            until, address = time.monotonic() + 120, None
            while not address and process.poll() is None and time.monotonic() < until:
                time.sleep(0.1)
                log.seek(0)
                address = re.search(r"http://127\.0\.0\.1:\d+", log.read())
            if not address:
                raise Failed("quire serve did not start")
            yield address[0]
        finally:
            process.terminate()
            process.wait()


def complete(address, prompt, n):
    body = json.dumps({"prompt": prompt, "max_tokens": n, "temperature": 0}).encode()
    request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)["choices"][0]["text"]


def batching_check(run, plan):
    """The same requests one after another and all at once."""
    prompts = [words(100 * i, 60 + 20 * i) for i in range(2 if run.short else 6)]
    run.progress("002: continuous batching")
    with serving(run) as address:
        alone = [complete(address, prompt, plan.predict) for prompt in prompts]
    with serving(run) as address, concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: complete(address, prompt, plan.predict), prompts))
    same = sum(a == b for a, b in zip(alone, together))
    return Check("Works with continuous batching", same == len(prompts),
                 f"{len(prompts)} requests at once, each in its own packed pages: {same} of {len(prompts)} get word for word"
                 " the answer that they get alone.", f"build/bin/quire serve -m smollm2 --kv {KV} --exact")


def merge_check(run):
    args = ["bench", "ops", "--seqs", 8, "--ctx", 32768, "--kv", KV, "--to", "k4v2"]
    run.progress("002: merge")
    ops = run.quire(*args)
    return Check("Caches can be merged into a batch", ops["us_merge"] < 1000,
                 f"8 caches of {context_name(ops['ctx'])} tokens: {ops['us_merge']:.0f} microseconds; no page is copied or"
                 " repacked.", run.command(args))


def generate(run, *args):
    """The text that `quire run` writes."""
    return run.output(run.build / "bin/quire", "run", "-m", "smollm2", "--kv", KV, "--temp", 0, "--quiet", "--ignore-end",
                      "-t", run.threads, *args)


def restore_checks(run, plan):
    """A text in one go; the same saved in the middle and restored; the same with its prefix from a store on disk."""
    prompt, half = words(300, 60 if run.short else 300), plan.predict // 2
    common = f"build/bin/quire run -m smollm2 --kv {KV} --temp 0"
    run.progress("002: save, restore, store")
    with tempfile.TemporaryDirectory() as folder:
        saved, store = pathlib.Path(folder) / "text.quire", pathlib.Path(folder) / "pages"
        whole = generate(run, "-p", prompt, "-n", plan.predict)
        first = generate(run, "-p", prompt, "-n", half, "--save", saved)
        rest = generate(run, "--load", saved, "-n", plan.predict - half)
        size = saved.stat().st_size
        generate(run, "-p", prompt, "-n", 1, "--store", store)
        stored = generate(run, "-p", prompt, "-n", plan.predict, "--store", store)
        pages = run.quire("store", "stat", store)
    return [
        Check("Save and restore of packed pages", first + rest == whole,
              f"A text saved after {half} of {plan.predict} tokens and restored goes on "
              + ("word for word" if first + rest == whole else "differently") + f"; the file has {mib(size)}.",
              f"{common} -n {half} -p TEXT --save FILE && {common} --load FILE -n {plan.predict - half}"),
        Check("Prefix cache on disk works with the packed format", stored == whole,
              f"The second run takes its prefix from the store ({store_figure(pages)}) and writes "
              + ("the same text." if stored == whole else "another text."), f"{common} -p TEXT --store DIR")]


def store_figure(pages):
    count, size = pages.get("pages"), pages.get("bytes")
    return f"{count} pages, {mib(size)}" if count is not None and size is not None else "packed pages"


# ---------------------------------------------------------------- plot


def thinned(points, n=300):
    return points[:: max(1, len(points) // n)]


def share_of_run(samples):
    """[(percent of the run, MiB of private memory)]"""
    end = samples[-1][0]
    return thinned([(100 * t / end, found["RssAnon"] / MIB) for t, found in samples])


def draw(panel, title, lines):
    top = panel.y_range[1]
    panel.axes(title, "% of the run", [(x, str(x)) for x in (0, 25, 50, 75, 100)],
               [(top * i / 4, f"{top * i / 4:.0f}") for i in range(5)])
    heights = label_places([panel.y(points[len(points) * 3 // 4][1]) for _, _, points in lines])
    for (name, colour, points), height in zip(lines, heights):
        panel.curve(points, colour)
        panel.picture.text(panel.right + 8, height + 4, name, kind="small", colour=colour)


def plot(run, plan, prefill, llama):
    name, last = "002-memory.svg", plan.contexts[-1]
    colours = {"f16": svg.PEER, "q4_0": svg.PEER_2}
    beside = [(f"Quire {KV}", svg.QUIRE, share_of_run(prefill[plan.trace_context][1]))]
    beside += [(f"llama.cpp {kind}", colours[kind], share_of_run(samples)) for kind, samples in llama.items()]
    alone = [(f"Quire {KV}", svg.QUIRE, share_of_run(prefill[last][1]))]
    picture = svg.Picture(980, 330, "Private memory during prefill")
    for box, title, lines in (((50, 50, 330, 270), f"{context_name(plan.trace_context)} tokens: private memory, MiB", beside),
                              ((540, 50, 820, 270), f"{context_name(last)} tokens: private memory, MiB", alone)):
        top = max(y for _, _, points in lines for _, y in points)
        top = 4 * (int(top / 4) + 1)
        draw(svg.Panel(picture, box, (0, 100), (0, top)), title, lines)
    picture.save(run.out / name)
    return name, "Private memory of a prefill over time, beside llama.cpp"


def answer(run):
    plan = SHORT if run.short else FULL
    notes = [f"Peaks are measured on {plan.large}'s shape with made Q4_0 weights. The cache is filled with synthetic rows"
             f" (`--fill`), and the model computes the last {plan.rows} tokens: a prefill of 128K tokens by it takes hours"
             " here. Bytes per token are Quire's own for this codec, scales included.",
             "Traces are real prefills, from the first token to the last, by a made model of 2 layers with 2 KV heads of 64;"
             " only memory that belongs to the process counts, not pages of the mapped file."]
    try:
        prefill = measure_prefill(run, plan)
        filled = measure_filled(run, plan)
        llama, missing = llama_traces(run, plan)
        checks = memory_checks(run, plan, prefill, filled)
        tables, plots = [memory_table(plan, filled)], [plot(run, plan, prefill, llama)]
        notes += [missing] if missing else []
    except Unavailable as reason:
        checks, tables, plots, filled = [Check("Peak memory of prefill", None, str(reason), "")], [], [], {}
    ppl, ppl_command = perplexities(run, plan)
    checks += [*quality_checks(ppl, ppl_command), batching_check(run, plan), merge_check(run), *restore_checks(run, plan)]
    return Section(
        "002", "pages that are quantized when they are written",
        "A cache that held fp16 rows until prefill was over saved nothing at its peak. Quire allocates packed pages before"
        " prefill starts and packs each page as soon as it is full, so that at most a page of each sequence and the rows of"
        " one step are raw.",
        checks, tables, plots, notes,
        {"filled": {str(c): r for c, r in filled.items()}, "perplexity": ppl})
