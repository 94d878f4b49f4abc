"""The suite beside other people's settings: ``python tools/surroundings.py ENGINE…``, in an environment that has it.

Each of the surroundings below is a folder of its own with a pytest configuration, an application's tests that use the
suite's fixtures, and a way to start pytest. In each the contract must come out CONFORMANT, with the very same status in
every cell, and the application's tests must pass on every engine. The exit code is 0 if all of that is so.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["SURROUNDINGS", "Surroundings", "main"]

LIMIT: Final = 300.0
"""Seconds for one run; the longest takes about 20."""

SCOPE: Final = "asyncio_default_fixture_loop_scope"

APPLICATION: Final = """\
import pytest

@pytest.mark.asyncio
async def test_a_report_is_built_every_day(store, store_factory):
    await store.schedule("daily", "@every 1d", "reports", None)
    await store_factory.advance(86_400)
    assert await store.tick_schedules() == 1

@pytest.mark.asyncio(loop_scope="module")
async def test_a_reminder_comes_after_an_hour(store, store_factory):
    await store.queue("reminders").enqueue("tea", delay=3_600)
    assert await store.queue("reminders").claim_one() is None
    await store_factory.advance(3_600)
    assert (await store.queue("reminders").claim_one()).job.payload == "tea"
"""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A configuration of pytest, and how it is started beside it."""

    settings: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        lines = ["[pytest]", *(f"{name} = {value}" for name, value in self.settings.items())]
        (folder / "pytest.ini").write_text("\n".join(lines) + "\n", "utf-8")
        (folder / "test_application.py").write_text(APPLICATION, "utf-8")


STRICT: Final = {"asyncio_mode": "strict", SCOPE: "function"}
WITHOUT_AUTOLOAD: Final = Surroundings(
    settings=STRICT,
    arguments=("-p", "pytest_asyncio.plugin", "-p", "alkstore_contract_suite.plugin"),
    environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
)

SURROUNDINGS: Final[Mapping[str, Surroundings]] = {
    "warnings are errors": Surroundings(settings=STRICT, arguments=("-W", "error")),
    "no plugin is loaded by itself": WITHOUT_AUTOLOAD,
    "auto mode": Surroundings(settings={"asyncio_mode": "auto", SCOPE: "function"}),
    "one loop a session": Surroundings(
        settings={"asyncio_mode": "strict", SCOPE: "session", "asyncio_default_test_loop_scope": "session"}
    ),
    "another loop for fixtures": Surroundings(settings={"asyncio_mode": "auto", SCOPE: "module"}),
    "pytest-xdist": Surroundings(settings=STRICT, arguments=("-n", "2")),
}
"""By what is particular about each. The first is what the others are compared with."""


def main(engines: Sequence[str], wanted: Mapping[str, Surroundings] = SURROUNDINGS) -> int:
    """Run them all and give the exit code."""
    first: Mapping[str, str] = {}
    problems: list[str] = []
    for name, surroundings in wanted.items():
        with tempfile.TemporaryDirectory(prefix="alkstore-surroundings-") as folder:
            code, cells = run(surroundings, engines, Path(folder))
        first = first or cells
        found = differences(first, cells)
        if code:
            found.insert(0, f"exit code {code}")
        print(f"{name}: {len(cells)} cells, {'; '.join(found) or 'as they should be'}", flush=True)
        problems += found
    return 1 if problems else 0


def run(surroundings: Surroundings, engines: Sequence[str], folder: Path) -> tuple[int, Mapping[str, str]]:
    """Give pytest's exit code and the status of every cell, with the engines' verdicts among them."""
    surroundings.write(folder)
    named = [argument for name in engines for argument in ("--alk-engine", name)]
    suite = ["--pyargs", "alkstore_contract_suite", "test_application.py", "--alk-report", "report", *named]
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *suite]
    done = subprocess.run(
        [*command, *surroundings.arguments],
        cwd=folder,
        env={**os.environ, **surroundings.environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode:
        print(done.stdout[-4_000:], done.stderr[-4_000:], sep="\n", flush=True)
    report = folder / "report" / "report.json"
    return done.returncode, statuses(json.loads(report.read_text("utf-8"))) if report.exists() else {}


def statuses(report: Mapping[str, Any]) -> Mapping[str, str]:
    """Read a report: what became of each cell, by engine, row and mode."""
    found: dict[str, str] = {}
    for engine in report["engines"]:
        found[engine["name"]] = engine["verdict"]
        for cell in engine["cells"]:
            found[f"{engine['name']} {cell['row']} {cell['mode']}"] = cell["status"]
    return found


def differences(first: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Say which cells are not as in the first report."""
    return [
        f"{name} is {other.get(name, 'not there')} and not {first.get(name, 'there')}"
        for name in dict.fromkeys([*first, *other])
        if first.get(name) != other.get(name)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
