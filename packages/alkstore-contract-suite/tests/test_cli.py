"""The companion command, as a shell sees it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hanging import HUNG
from made_reports import a_cell, a_failure, a_report, an_engine

from alkstore_contract_suite import cli, report_values
from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.report_values import Report
from alkstore_contract_suite.verdict import Verdict

GOOD = an_engine("toy", a_cell("Q-01"))
BAD = an_engine("toy", a_failure("Q-01"))


def saved(path: Path, report: Report) -> str:
    path.write_bytes(report_values.encode(report))
    return str(path)


def test_merging_writes_all_three_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = saved(tmp_path / "a.json", a_report(GOOD))
    other = saved(tmp_path / "b.json", a_report(an_engine("mem", a_cell("Q-01"))))
    out = tmp_path / "new" / "out"

    code = cli.main(["merge", one, other, "--out", str(out)])

    assert code == 0
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.json", "report.md"]
    assert [engine.name for engine in report_values.read(out / "report.json").engines] == ["mem", "toy"]
    assert capsys.readouterr().out == f"{out / 'report.html'}\n"


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        (GOOD, BAD, 1, "2 worse, 0 better"),
        (BAD, GOOD, 0, "0 worse, 2 better"),
        (GOOD, GOOD, 0, "0 worse, 0 better"),
    ],
)
def test_the_exit_code_of_a_comparison_says_whether_anything_is_worse(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: report_values.EngineValue,
    new: report_values.EngineValue,
    code: int,
    said: str,
) -> None:
    paths = [saved(tmp_path / "old.json", a_report(old)), saved(tmp_path / "new.json", a_report(new))]

    assert cli.main(["diff", *paths]) == code
    assert capsys.readouterr().out.splitlines()[-1] == said


@pytest.mark.parametrize(("command", "begin"), [("html", "<!doctype html>"), ("markdown", "# alkstore")])
def test_a_report_is_shown_on_standard_output_or_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, begin: str
) -> None:
    path = saved(tmp_path / "report.json", a_report(BAD))
    target = tmp_path / "made" / "there"

    codes = cli.main([command, path]), cli.main([command, path, "-o", str(target)])

    shown = capsys.readouterr().out
    assert codes == (0, 0)
    assert shown.startswith(begin)
    assert target.read_text("utf-8") == shown


@pytest.mark.parametrize(
    ("engine", "text", "colour"),
    [(GOOD, "1.0 conformant", "#116329"), (BAD, "1.0 not conformant", "#a1261e")],
)
def test_a_badge_says_the_verdict_in_words_and_colour(
    tmp_path: Path, engine: report_values.EngineValue, text: str, colour: str
) -> None:
    path = saved(tmp_path / "report.json", a_report(engine))
    files = tmp_path / "badge.svg", tmp_path / "badge.json"

    codes = [cli.main(["badge", path, "-o", str(file)]) for file in files]

    picture = ElementTree.parse(files[0]).getroot()
    assert codes == [0, 0]
    assert picture.attrib["aria-label"] == f"alkstore contract: {text}"
    assert [part.text for part in picture if part.tag.endswith("text")] == ["alkstore contract", text]
    assert colour in [part.attrib.get("fill") for part in picture.iter()]
    assert json.loads(files[1].read_text("utf-8")) == {
        "schemaVersion": 1,
        "label": "alkstore contract",
        "message": text,
        "color": colour,
    }


def test_a_badge_of_several_runs_is_good_only_if_all_of_them_are(tmp_path: Path) -> None:
    older = an_engine("toy", a_failure("Q-01"), python="3.10.1")
    path = saved(tmp_path / "report.json", a_report(GOOD, older, an_engine("mem", a_cell("Q-01"))))
    badge = tmp_path / "badge.json"

    codes = [cli.main(["badge", path, "--engine", name, "-o", str(badge)]) for name in ("mem", "toy")]

    assert codes == [0, 0]
    assert json.loads(badge.read_text("utf-8"))["message"] == "1.0 not conformant"


NOT_WHOLE = an_engine("toy", a_cell("Q-01", Status.NOT_TESTED), verdict=Verdict.INCOMPLETE)


@pytest.mark.parametrize(
    ("engines", "arguments", "said"),
    [
        ([NOT_WHOLE], [], "engine toy is INCOMPLETE: only what was run whole has a badge"),
        ([GOOD, an_engine("mem")], [], "the report has the engines toy, mem: name one with --engine"),
        ([GOOD], ["--engine", "pg"], "the report has no engine 'pg', only toy"),
    ],
)
def test_a_badge_that_would_say_too_much_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    engines: list[report_values.EngineValue],
    arguments: list[str],
    said: str,
) -> None:
    path = saved(tmp_path / "report.json", a_report(*engines))

    assert cli.main(["badge", path, *arguments]) == 2
    assert capsys.readouterr().err == f"alkstore-contract: {said}\n"


def test_the_schema_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == report_values.json_schema()


def command(*arguments: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "alkstore_contract_suite", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HUNG,
        check=False,
    )


def test_a_run_is_pytests_and_so_is_its_exit_code(tmp_path: Path) -> None:
    told = command("run", "--alk-engine", "nobody", folder=tmp_path)

    assert told.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no engine 'nobody' is registered" in told.stderr


@pytest.mark.parametrize("more", [(), ("-p", "alkstore_contract_suite.plugin")])
def test_a_run_has_its_plugin_where_pytest_loads_none(tmp_path: Path, more: tuple[str, ...]) -> None:
    told = command(
        "run", *more, "--alk-explain", "LOCK-05", folder=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
    )

    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.startswith("LOCK-05  ")


def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "report.json", a_report(BAD))
    line = f"{sys.executable} -m alkstore_contract_suite html {path} | head -c 9"

    told = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HUNG,
        check=False,
    )

    assert (told.returncode, told.stdout, told.stderr) == (0, "<!doctype", "")


def test_a_terminal_without_the_letters_gets_escapes(tmp_path: Path) -> None:
    path = saved(tmp_path / "report.json", a_report(an_engine("toy", a_failure("Q-01", "Ω"))))

    told = command("markdown", path, folder=tmp_path, PYTHONIOENCODING="ascii")

    assert told.returncode == 0
    assert "\\u03a9" in told.stdout
