"""llama.cpp's own llama-perplexity: what its K/V cache types cost a model.

Built from the sources that the program's libllama comes from (tools/build-llama --tools: minutes, once). Weights are
expanded to F32 by its llama-quantize. The base is its f16 cache; it keeps log-probabilities in 16 bits, none more than 16
below the largest, which hardly shows in a divergence, but does in the perplexity of an unlikely text: the base's is taken
from the run that made it.
It tokenizes with the same library as Quire, cuts the same pieces, begins each with the model's first token and scores the
same rows: those from ctx / 2 to ctx - 2."""

import pathlib
import platform
import re
import sys
import tempfile

import programs

BITS = {"f16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5}  # with their scales
BATCH = 2048  # its default; a context below it must be the whole batch, or it computes pieces side by side


def pair_bits(pair):
    k, v = pair.split(":")
    return (BITS[k] + BITS[v]) / 2


def parse(text):
    """The figures of its report. Its uncertainties are one standard error: here half of a 95 % interval, as Quire's."""
    def figure(pattern):
        found = re.search(pattern + r"\s*:\s*(-?[\d.]+)(?:\s*±\s*([\d.]+))?", text)
        if not found:
            programs.fail(f"llama-perplexity did not print '{pattern}':\n{text[-2000:]}")
        return [float(x) for x in found.groups() if x is not None]

    kld, error = figure(r"Mean\s+KLD")
    return {"kld": kld, "kld_error": 1.96 * error, "kld_p999": figure(r"99\.9%\s+KLD")[0],
            "same_top": figure(r"Same top p")[0] / 100, "ppl": figure(r"Mean PPL\(Q\)")[0]}


def parse_perplexity(text):
    """Of the base: it prints [1]12.3456,[2]12.4567, and so on, the mean so far after each piece."""
    found = re.findall(r"\[\d+\]([\d.]+),", text)
    if not found:
        programs.fail(f"llama-perplexity did not print a perplexity:\n{text[-2000:]}")
    return float(found[-1])


class Perplexity:
    def __init__(self, threads, work):
        self.tools = pathlib.Path(programs.run_text(programs.ROOT / "tools/build-llama", "--tools", quiet=False))
        self.threads, self.work = threads, work
        version = re.search(r"^version=(\S+)", (programs.ROOT / "tools/fetch-llama").read_text(), re.M)[1]
        self.where = f"llama-cpp-python {version}, {platform.machine()}"

    def weights(self, model):
        """The model in F32, made once."""
        source = programs.model_file(model)
        expanded = programs.cache_dir() / "models" / f"{source.stem}-f32.gguf"
        if not expanded.exists() or expanded.stat().st_mtime < source.stat().st_mtime:
            partial = expanded.with_suffix(".part")
            programs.run_text(self.tools / "llama-quantize", "--allow-requantize", source, partial, "F32")
            partial.rename(expanded)  # whole or not at all
        return expanded

    def run(self, model, text, ctx, chunks, base, pair, *more):
        k, v = pair.split(":")
        return programs.run_text(self.tools / "llama-perplexity", "-m", self.weights(model), "-f", text, "-c", ctx,
                                 "-b", min(ctx, BATCH), "--chunks", chunks, "-fa", "on", "-ctk", k, "-ctv", v,
                                 "-t", self.threads, "--kl-divergence-base", base, *more)

    def measure(self, model, text, ctx, chunks, pairs):
        """A dict of figures for each pair of cache types."""
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            base = pathlib.Path(folder) / "base"
            print(f"fidelity: llama.cpp f16:f16, {model}, {text}", file=sys.stderr)
            ppl_base = parse_perplexity(self.run(model, text, ctx, chunks, base, "f16:f16"))
            for pair in pairs:
                print(f"fidelity: llama.cpp {pair}, {model}, {text}", file=sys.stderr)
                figures = parse(self.run(model, text, ctx, chunks, base, pair, "--kl-divergence"))
                ppl = figures.pop("ppl")
                yield {"cache": pair, "bits": pair_bits(pair), **figures, "ppl_ratio": ppl / ppl_base, "ppl_base": ppl_base,
                       "where": self.where}
