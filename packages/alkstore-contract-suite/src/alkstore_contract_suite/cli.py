"""The ``alkstore-contract`` command: begin an engine, run the contract, and work with its reports."""

import argparse
import importlib.resources
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from alkstore_contract_suite import (
    CONTRACT_VERSION,
    report_badge,
    report_html,
    report_markdown,
    report_values,
    skeleton,
)
from alkstore_contract_suite.report import write
from alkstore_contract_suite.report_diff import difference
from alkstore_contract_suite.report_merge import merged
from alkstore_contract_suite.report_values import ReportError

__all__ = ["main"]

GOOD: Final = 0
WORSE: Final = 1
NOT_RUN: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code: 0, 1 for a red run or a worse report, 2 for what could not be done.

    A run gives pytest's own.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        # A reason may hold what the terminal's encoding has not.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if given[:1] == ["run"]:
        return _run(given[1:])
    try:
        return _answer(_parser().parse_args(given))
    except (ReportError, skeleton.SkeletonError, OSError) as error:
        sys.stderr.write(f"alkstore-contract: {error}\n")
        return NOT_RUN


def _run(arguments: Sequence[str]) -> int:
    # In a process of its own: pytest would warn that the suite was imported before it could look at its assertions.
    pytest = [sys.executable, "-m", "pytest", *_plugin(arguments)]
    run = subprocess.Popen([*pytest, "--pyargs", "alkstore_contract_suite", *arguments])
    while True:
        try:
            return run.wait()
        except KeyboardInterrupt:
            continue  # it was pytest's too, and pytest has a report to finish


def _plugin(arguments: Sequence[str]) -> list[str]:
    """Name the plugin where pytest loads none by itself; it must not be named twice."""
    named = [*arguments, os.environ.get("PYTEST_ADDOPTS", ""), os.environ.get("PYTEST_PLUGINS", "")]
    is_named = any("alkstore_contract_suite" in argument for argument in named)
    is_off = os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD") or "--disable-plugin-autoload" in arguments
    return ["-p", "alkstore_contract_suite.plugin"] if is_off and not is_named else []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="alkstore-contract", description="Begin an engine, run the contract, work with its reports."
    )
    parser.add_argument("--version", action="version", version=f"alkstore contract {CONTRACT_VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="run the contract; its arguments are pytest's: run --alk-engine NAME")
    init = commands.add_parser("init", help="write the skeleton of an engine's package, its first rows green")
    init.add_argument(
        "name", help="of the engine, and of its URLs: a word of lower-case letters, digits and '_'"
    )
    init.add_argument("-o", "--out", type=Path, help="the new folder  (default: alkstore-NAME here)")
    _add_reports(commands)
    return parser


def _add_reports(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    merge = commands.add_parser("merge", help="put several reports side by side")
    merge.add_argument("reports", nargs="+", type=Path, metavar="REPORT.json")
    merge.add_argument("-o", "--out", type=Path, required=True, help="folder for report.json, .md and .html")
    diff = commands.add_parser(
        "diff", help="say what got better and worse; exits with 1 if anything is worse"
    )
    diff.add_argument("old", type=Path, metavar="OLD.json")
    diff.add_argument("new", type=Path, metavar="NEW.json")
    for name, what in (("html", "one HTML page"), ("markdown", "Markdown")):
        shown = commands.add_parser(name, help=f"show a report as {what}")
        shown.add_argument("report", type=Path, metavar="REPORT.json")
        shown.add_argument("-o", "--out", type=Path, help="file  (default: standard output)")
    badge = commands.add_parser("badge", help="make a badge of a verdict")
    badge.add_argument("report", type=Path, metavar="REPORT.json")
    badge.add_argument("--engine", help="which, if the report has several")
    badge.add_argument(
        "-o",
        "--out",
        type=Path,
        help="file: .svg, or .json for shields.io  (default: SVG on standard output)",
    )
    commands.add_parser("schema", help="show the JSON Schema of a report")


def _answer(given: argparse.Namespace) -> int:
    match given.command:
        case "init":
            folder = given.out or Path(f"alkstore-{given.name.replace('_', '-')}")
            sys.stdout.write("\n".join(skeleton.write(given.name, folder)) + "\n")
        case "merge":
            write(merged([report_values.read(path) for path in given.reports]), given.out)
            sys.stdout.write(f"{given.out / 'report.html'}\n")
        case "diff":
            found = difference(report_values.read(given.old), report_values.read(given.new))
            sys.stdout.write("\n".join(found.lines()) + "\n")
            return WORSE if found.worse else GOOD
        case "html":
            _give(report_html.render(report_values.read(given.report)), given.out)
        case "markdown":
            _give(report_markdown.render(report_values.read(given.report)), given.out)
        case "badge":
            draw = report_badge.as_json if given.out and given.out.suffix == ".json" else report_badge.as_svg
            _give(draw(report_values.read(given.report), given.engine), given.out)
        case _:
            schema = importlib.resources.files("alkstore_contract_suite") / report_values.SCHEMA_FILE
            _give(schema.read_text("utf-8"), None)
    return GOOD


def _give(text: str, path: Path | None) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has had enough; what Python flushes at its end must not complain about that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
