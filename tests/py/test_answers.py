"""bench/answers: a short run of every answer, and the report that it makes."""

import json
import os
import subprocess
import sys
import xml.dom.minidom
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("QUIRE_PROGRAM", "")
NUMBERS = ["000", "001", "002", "003", "004"]
pytestmark = pytest.mark.skipif(
    not os.path.exists(PROGRAM) or not os.environ.get("QUIRE_ENGINE_PROGRAMS"), reason="built without the engine")

sys.path.insert(0, str(ROOT / "bench"))
import answering  # noqa: E402


def answers(folder, *arguments, status=0):
    done = subprocess.run([sys.executable, ROOT / "bench/answers", "--short", "-t", "1", "--build", Path(PROGRAM).parents[1],
                           "--json", folder / "answers.json", "--docs", folder / "ANSWERS.md", *arguments],
                          capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    answers(folder)
    return folder


@pytest.fixture
def sections(folder):
    return json.loads((folder / "answers.json").read_text())["sections"]


def test_every_request_is_answered(sections):
    assert [section["number"] for section in sections] == NUMBERS
    for section in sections:
        assert section["title"] != "not answered" and section["short"] and section["summary"] and section["data"]
        assert len(section["checks"]) >= 3 and section["tables"] and section["plots"]
        for check in section["checks"]:
            assert check["text"] and check["figure"] and check["ok"] in (True, False, None)
        for table in section["tables"]:
            assert table["rows"] and all(len(row) == len(table["header"]) for row in table["rows"])


def test_plots_are_pictures(folder, sections):
    for section in sections:
        for path, text in section["plots"]:
            assert text and xml.dom.minidom.parse(str(folder / "answers" / path)).documentElement.tagName == "svg"


def test_markdown_is_well_formed(folder, sections):
    text = (folder / "ANSWERS.md").read_text()
    for section in sections:
        assert f"\n## {section['number']}: {section['title']}\n" in text
        assert all(f"](answers/{path})" in text for path, _ in section["plots"])
    code, columns = False, None
    for line in text.splitlines():
        code ^= line.startswith("```")
        if code or line.startswith(("```", "#")):
            continue
        if not line.startswith("|"):
            assert len(line) <= 100, line
            columns = None
            continue
        cells = line.replace("\\|", "").count("|")
        assert columns in (None, cells), line  # every row of a table has as many cells as its header
        columns = cells
    assert not code
    assert str(Path.home()) not in text and str(ROOT) not in text  # nothing of this machine


def test_one_answer_can_be_made_again(folder, sections):
    answers(folder, "--only", "004")
    again = json.loads((folder / "answers.json").read_text())["sections"]
    assert [section["number"] for section in again] == NUMBERS
    assert [a for a in again if a["number"] != "004"] == [s for s in sections if s["number"] != "004"]
    assert again[4] != sections[4]


def test_the_report_can_be_written_again(folder):
    before = (folder / "ANSWERS.md").read_text()
    (folder / "ANSWERS.md").unlink()
    answers(folder, "--draw")
    assert (folder / "ANSWERS.md").read_text() == before


def test_a_failed_answer_does_not_lose_the_others():
    def broken(run):
        raise ValueError("no such thing")

    def ended(run):
        sys.exit("a program failed")

    def careless(run):
        return answering.Section("001", "title", "summary", [answering.Check("a", True, "b", "c")],
                                 [answering.Table("t", ["a", "b"], [["1"]])])

    run = answering.Run(short=True, threads=1)
    for answer, said in ((broken, "no such thing"), (ended, "a program failed"), (careless, "1 cells in a row")):
        section = answering.answer_section("001", answer, run)
        assert section["title"] == "not answered" and said in section["summary"]
        assert [check["ok"] for check in section["checks"]] == [False]
    report = {"machine": "a machine", "sections": [section]}
    assert "**Not reached.**" in answering.markdown(report, "answers")


def test_a_command_that_fails_is_named():
    run = answering.Run(build=Path(PROGRAM).parents[1])
    with pytest.raises(answering.Failed, match="bench nothing --json.*nothing"):
        run.quire("bench", "nothing")


def test_commands_are_those_of_a_clone():
    run = answering.Run()
    made = answering.programs.cache_dir() / "made/qwen3-0.6b-1-0123abcd.gguf"
    assert run.command(["eval", "ppl", "--text", ROOT / "LICENSE", "-m", made]) == \
        "build/bin/quire eval ppl --text LICENSE -m $(bench/made_models.py qwen3-0.6b)"


def test_unknown_requests_are_refused(tmp_path):
    assert "there is no request 005" in answers(tmp_path, "--only", "005", status=2).stderr
    (tmp_path / "answers.json").write_text("{}")
    assert "not a report" in answers(tmp_path, status=1).stderr
