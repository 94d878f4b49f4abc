"""A page with files of its own is followed as a reader would: files written, commands typed, answers compared.

A block behind ``<!-- file NAME -->`` is that file. The lines ``$ …`` of console blocks are run in its folder, and what
follows them must be what they say, where ``…`` stands for anything, times for other times. ``^C`` is an interrupt, once what
stands before it was seen. What needs another machine (installing, containers, systemd) is looked at without running it.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from alkstore_pg import contract_dsn

ROOT = Path(__file__).resolve().parent.parent
FILE = re.compile(
    r"^<!-- file (?P<name>\S+) -->\n(?P<fence>`{3,})\w*\n(?P<body>.*?)^(?P=fence)$", re.M | re.S
)
CONSOLE = re.compile(r"^```console\n(?P<body>.*?)^```$", re.M | re.S)
PAGES = [page for page in sorted(ROOT.glob("docs/**/*.md")) if FILE.search(page.read_text("utf-8"))]

NOT_RUN = re.compile(r"(mkdir|cd|python3 -m venv|\. |pip|sudo|docker|kubectl|export SHOP_PASSWORD)\b.*|\. .*")
LEGAL_TIMES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ|\b\d+(\.\d+)? ?(ms|s|min)\b")


@dataclass
class Command:
    line: str
    answer: list[str] = field(default_factory=list)


def steps(text: str) -> Iterator[tuple[str, str] | Command]:
    """Give the files and the commands of a page, in order."""
    found = sorted([*FILE.finditer(text), *CONSOLE.finditer(text)], key=lambda match: match.start())
    for match in found:
        if match.re is FILE:
            yield match["name"], match["body"]
            continue
        commands: list[Command] = []
        for line in match["body"].splitlines():
            if line.startswith("$ "):
                commands.append(Command(line.removeprefix("$ ")))
            else:
                commands[-1].answer.append(line)
        yield from commands


def pattern(lines: list[str]) -> re.Pattern[str]:
    """Match what a terminal shows, whatever the times and however wide its columns."""
    wanted = "".join(".*\n?" if line == "…" else f"{_line(line)}\n" for line in lines)
    return re.compile(wanted, re.DOTALL)


def _line(line: str) -> str:
    return re.escape(_plain(line)).replace("…", "[^\n]*")


def _plain(line: str) -> str:
    return re.sub(r" +", " ", LEGAL_TIMES.sub("TIME", line)).rstrip()


def run(command: Command, folder: Path, environment: dict[str, str]) -> None:
    """Type a command, and see its answer."""
    shown = ""
    words = ["bash", "-c", f"exec {command.line}"]
    before, _, after = "\n".join(command.answer).partition("^C")
    expected = pattern([*before.splitlines(), *after.strip("\n").splitlines()])
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            shown += f"{_plain(line)}\n"
            if "^C" in command.answer and pattern(before.splitlines()).fullmatch(shown):
                running.send_signal(signal.SIGINT)

    assert expected.fullmatch(shown), f"$ {command.line}\n{shown}\n--- but on the page\n{command.answer}"


def environment(shop: str) -> dict[str, str]:
    here = Path(sys.executable).parent
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ALKSTORE"))},
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",  # a pipe is 80 wide, and cuts
        "PYTEST_ADDOPTS": "-p no:randomly -p no:cacheprovider",
        "PGDATABASE": contract_dsn.database(shop),
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_that_is_followed_leads_where_it_says(page: Path, tmp_path: Path, shop: str) -> None:
    surroundings = environment(shop)
    database = contract_dsn.database(shop)

    for step in steps(page.read_text("utf-8")):
        if isinstance(step, tuple):
            (tmp_path / step[0]).write_text(step[1], "utf-8")
        elif export := re.fullmatch(r"export (ALKSTORE_URL)=(\S+)", step.line):
            surroundings[export[1]] = export[2].replace("postgresql:///shop", f"postgresql:///{database}")
        elif not NOT_RUN.fullmatch(step.line):
            run(step, tmp_path, surroundings)


def files(*suffixes: str) -> list[tuple[str, str]]:
    return [
        (match["name"], match["body"])
        for page in PAGES
        for match in FILE.finditer(page.read_text("utf-8"))
        if match["name"].endswith(suffixes)
    ]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize(("name", "text"), files(".service"), ids=[name for name, _ in files(".service")])
def test_systemd_finds_nothing_wrong_with_a_unit(name: str, text: str, tmp_path: Path) -> None:
    unit = tmp_path / name
    # Its program is not on this machine, and neither is its user.
    text = re.sub(r"(?m)^(Exec\w+=)\S+", rf"\1{sys.executable}", text)
    unit.write_text(re.sub(r"(?m)^User=.*", "User=daemon", text), "utf-8")

    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )

    assert [line for line in verified.stderr.splitlines() if name in line] == []


@pytest.mark.parametrize(("name", "text"), files(".yaml"), ids=[name for name, _ in files(".yaml")])
def test_a_file_for_containers_can_be_read_and_gives_the_worker_its_time(name: str, text: str) -> None:
    documents = list(yaml.safe_load_all(text))

    assert all(isinstance(document, dict) for document in documents)
    assert re.search(r"stop_grace_period: 45s|terminationGracePeriodSeconds: 45", text)


@pytest.mark.parametrize(
    ("shown", "page"),
    [
        ("TIME INFO worker is at work\n", ["… INFO worker is at work"]),
        ("mail 2 TIME\n", ["mail      2       1.5 s"]),
        ("one\ntwo\nthree\n", ["one", "…", "three"]),
    ],
)
def test_an_answer_may_differ_in_what_a_page_leaves_open(shown: str, page: list[str]) -> None:
    assert pattern(page).fullmatch(shown)


@pytest.mark.parametrize(
    ("shown", "page"),
    [("done 1\n", ["done 2"]), ("one\ntwo\n", ["one"]), ("", ["one"]), ("one two\n", ["one"])],
)
def test_an_answer_that_differs_otherwise_is_refused(shown: str, page: list[str]) -> None:
    assert not pattern(page).fullmatch(shown)
