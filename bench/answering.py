"""What an answer to a request is made of: checks, tables, plots; how it is run, kept and printed.

bench/answer_NNN.py has one function, answer(run) -> Section. bench/answers calls them in order."""

import dataclasses
import json
import pathlib
import shlex
import subprocess
import sys
import textwrap
import time
import traceback

import programs
from programs import ROOT


@dataclasses.dataclass
class Check:
    """One criterion of the request."""

    text: str  # the criterion, in the user's words, shortened
    ok: bool | None  # None: it cannot be judged here; `figure` says why
    figure: str  # what was measured
    command: str  # the command that makes the figure


@dataclasses.dataclass
class Table:
    title: str
    header: list
    rows: list  # of lists of str, each as long as the header
    note: str = ""


@dataclasses.dataclass
class Section:
    number: str  # "000"
    title: str
    summary: str
    checks: list = dataclasses.field(default_factory=list)
    tables: list = dataclasses.field(default_factory=list)
    plots: list = dataclasses.field(default_factory=list)  # (path relative to run.out, alt text)
    notes: list = dataclasses.field(default_factory=list)
    data: dict = dataclasses.field(default_factory=dict)  # the figures, for answers.json


class Failed(Exception):
    """A command that failed: the command, and what it wrote on stderr."""


class Run:
    """What an answer is given."""

    def __init__(self, short=False, threads=None, build=ROOT / "build", out=None):
        self.short = short  # tiny shapes: seconds instead of minutes
        self.threads = threads or programs.processors()
        self.build = pathlib.Path(build).resolve()
        self.out = pathlib.Path(out or self.build / "answers").resolve()  # where plots go

    @property
    def python(self):
        """The Python that has gguf, mlx and torch, where `tools/setup bench` has installed them."""
        return programs.cache_dir() / "venv/bin/python"

    def quire(self, *args):
        """The parsed output of `quire ARGS --json`."""
        return json.loads(self.output(self.build / "bin/quire", *args, "--json"))

    def output(self, *command):
        """The standard output of any program. Raises Failed."""
        command = [str(part) for part in command]
        try:
            done = subprocess.run(command, text=True, capture_output=True, cwd=ROOT)
        except OSError as error:
            raise Failed(f"{shlex.join(command)}: {error.strerror}") from error
        if done.returncode != 0:
            raise Failed(f"{shlex.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
        return done.stdout

    def command(self, args):
        """How a user types `quire ARGS` in a clone: without the directories of this machine."""
        return " ".join(["build/bin/quire", *map(shell_word, args)])

    def progress(self, text):
        print(f"answers: {text}", file=sys.stderr, flush=True)


def shell_word(argument):
    """An argument as a user types it: a file in the clone relative to it, a made model by the command that prints its
    path, one in the cache under ~/.cache/quire."""
    path = pathlib.Path(str(argument))
    if not path.is_absolute():
        return shlex.quote(str(argument))
    if path.is_relative_to(programs.cache_dir() / "made"):
        return f"$(bench/made_models.py {path.name.rsplit('-', 2)[0]})"
    if path.is_relative_to(ROOT):
        return shlex.quote(str(path.relative_to(ROOT)))
    if path.is_relative_to(programs.cache_dir()):
        return "~/.cache/quire/" + shlex.quote(str(path.relative_to(programs.cache_dir())))
    return shlex.quote(path.name)


# ---------------------------------------------------------------- running


def answer_section(number, answer, run):
    """The section as a dict, for JSON. A failure becomes a section too, so that the others are not lost."""
    start = time.monotonic()
    try:
        section = checked(answer(run))
    except (Exception, SystemExit) as error:  # whatever it is, it belongs to this section alone
        traceback.print_exc()
        section = Section(number, "not answered", f"This answer failed: {type(error).__name__}: {error}",
                          [Check("the answer runs", False, str(error).splitlines()[0] if str(error) else "-",
                                 f"bench/answers --only {number}")])
    return {**dataclasses.asdict(section), "short": run.short, "threads": run.threads,
            "seconds": round(time.monotonic() - start, 1), "date": time.strftime("%Y-%m-%d", time.gmtime())}


def checked(section):
    """The section itself, if it is well formed."""
    if not section.checks:
        raise ValueError(f"section {section.number} has no checks")
    for table in section.tables:
        for row in table.rows:
            if len(row) != len(table.header):
                raise ValueError(f"table '{table.title}': {len(row)} cells in a row, {len(table.header)} in the header")
    return section


# ---------------------------------------------------------------- Markdown

SIGNS = {True: "✓", False: "✗", None: "–"}
WORDS = {True: "", False: "**Not reached.** ", None: "**Not judged here.** "}
COLUMNS = 100


def wrapped(text, indent=""):
    return textwrap.wrap(text, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def anchor(text):
    """GitHub's anchor of a heading."""
    return "".join(c for c in text.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def heading(section):
    return f"{section['number']}: {section['title']}"


def table_line(cells):
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def table_lines(table):
    yield from (*wrapped(f"**{table['title']}**"), "", table_line(table["header"]))
    yield "|" + "|".join(["---"] + ["---:"] * (len(table["header"]) - 1)) + "|"
    yield from map(table_line, table["rows"])
    yield ""
    if table["note"]:
        yield from (*wrapped(table["note"]), "")


def check_lines(checks):
    """A checklist, and below it the commands, each once, by letter."""
    commands = list(dict.fromkeys(check["command"] for check in checks if check["command"]))
    letters = {command: chr(ord("a") + i) for i, command in enumerate(commands)}
    yield from (table_line(["", "criterion", "measured", "by"]), "|---|---|---|---|")
    for check in checks:
        yield table_line([SIGNS[check["ok"]], check["text"], WORDS[check["ok"]] + check["figure"],
                          letters.get(check["command"], "")])
    if commands:
        yield from ("", "```", *(f"{letter}  {command}" for command, letter in letters.items()), "```")
    yield ""


def section_lines(section, pictures):
    yield from (f"## {heading(section)}", "", *wrapped(section["summary"]), "")
    yield from check_lines(section["checks"])
    for table in section["tables"]:
        yield from table_lines(table)
    for path, text in section["plots"]:
        yield from (*wrapped(f"![{text}]({pictures}/{path})"), "")
    for note in section["notes"]:
        yield from wrapped(f"- {note}", "  ")
    if section["notes"]:
        yield ""


def counts(section):
    """(reached, judged)"""
    judged = [check["ok"] for check in section["checks"] if check["ok"] is not None]
    return sum(judged), len(judged)


def overview_lines(sections):
    yield from ("| request | reached | minutes |", "|---|---:|---:|")
    for section in sections:
        reached, judged = counts(section)
        yield (f"| [{heading(section)}](#{anchor(heading(section))}) | {reached} of {judged} |"
               f" {section['seconds'] / 60:.1f} |")
    yield ""


def markdown(report, pictures):
    """docs/ANSWERS.md. `pictures`: the folder of the plots, relative to the document."""
    sections = report["sections"]
    minutes = sum(section["seconds"] for section in sections) / 60
    dates = sorted({section["date"] for section in sections})
    short = any(section["short"] for section in sections)
    lines = ["<!-- written by `make answers` (bench/answers); do not edit -->", "", "# Five requests, answered", "",
             *wrapped("Five users asked for a quantized KV cache that saves memory and time in practice, each with"
                      " criteria or a table of their own. Each section goes through one request point by point: the"
                      " criterion, the figure that was measured, and the command that measures it. ✓: reached, ✗: not"
                      " reached, –: cannot be judged here."), "",
             *wrapped(f"Measured {' to '.join(dict.fromkeys([dates[0], dates[-1]]))} on {report['machine']}, in"
                      f" {minutes:.0f} minutes, by `make answers`."
                      + (" **Some sections are a short run with tiny shapes, which shows that they work, not what is"
                         " reached.**" if short else "")), ""]
    lines += overview_lines(sections)
    for section in sections:
        lines += section_lines(section, pictures)
    return "\n".join(lines).rstrip() + "\n"


# ---------------------------------------------------------------- figures as text


def mib(n_bytes):
    return f"{n_bytes / (1 << 20):,.1f} MiB"


def gib(n_bytes):
    return f"{n_bytes / (1 << 30):.2f} GiB"


def times(ratio):
    return f"{ratio:.2f}x"


def span(values, form=times):
    """The least and the most of some figures: "1.52x to 4.10x"."""
    low, high = form(min(values)), form(max(values))
    return low if low == high else f"{low} to {high}"
