"""The command that repeats a case is one that works where the case was run."""

from pathlib import Path

import pytest

from alkstore_contract_suite import rows
from alkstore_contract_suite.layout import Surroundings, again
from alkstore_contract_suite.plan import Case

CASE = Case(rows.registered()[0], "toy", "plain")
WORDS = f"--alk-engine toy --alk-row {CASE.row.id} --alk-mode plain --alk-seed 7"
SUITE = "--pyargs alkstore_contract_suite"


def surroundings(
    program: str = "/venv/bin/pytest", prefix: str = "/venv", found: str = "/venv/bin", **environment: str
) -> Surroundings:
    return Surroundings(
        environment=environment,
        program=program,
        python="/venv/bin/python",
        prefix=prefix,
        which=lambda name: f"{found}/{name}",
    )


@pytest.mark.parametrize(
    ("where", "command"),
    [
        (surroundings(), f"pytest {SUITE} {WORDS}"),
        (surroundings("/venv/lib/pytest/__main__.py"), f"python -m pytest {SUITE} {WORDS}"),
        (surroundings(found="/usr/bin"), f"/venv/bin/python -m pytest {SUITE} {WORDS}"),
        (
            surroundings(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
            f"pytest -p alkstore_contract_suite.plugin {SUITE} {WORDS}",
        ),
        (
            surroundings(prefix="/work/.nox/contract-3-12", NOX_CURRENT_SESSION="contract-3.12"),
            f"nox -s contract-3.12 -- {WORDS}",
        ),
        (surroundings(NOX_CURRENT_SESSION="contract"), f"nox --no-venv -s contract -- {WORDS}"),
        (surroundings(NOX_CURRENT_SESSION="wheels"), f"pytest {SUITE} {WORDS}"),
    ],
)
def test_the_command_is_what_the_shell_finds(where: Surroundings, command: str) -> None:
    assert again(CASE, 7, where) == command


def test_an_interpreter_below_the_folder_is_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    python = str(tmp_path / ".venv" / "bin" / "python")
    where = Surroundings(environment={}, program="x", python=python, prefix="y", which=lambda _: None)

    assert again(CASE, 7, where) == f".venv/bin/python -m pytest {SUITE} {WORDS}"
