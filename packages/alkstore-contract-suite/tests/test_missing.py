"""A method that is not written yet is named as that, wherever it was missed, and never as a broken promise."""

import asyncio
import subprocess
from pathlib import Path
from typing import Protocol

import pytest

from alkstore_contract_suite.failure import missing


class Author(Protocol):
    path: Path

    def pytest(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]": ...


# mem without some methods, as on the way up the ladder.
HALF = """
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_mem import MemStore
from alkstore_mem.contract import CAPABILITIES
from alkstore_mem.engine import MemEngine

class Engine(MemEngine):
    {methods}

class Store(MemStore):
    async def _open_engine(self):
        return Engine(self._clock)

def pytest_alkstore_register(registry):
    registry.register(InProcessColumn(
        "half", version="0", contract="1.0", capabilities=CAPABILITIES,
        make_store=lambda clock, source, **more: Store(clock=clock, random=source, **more)))
"""
METHOD = """
    async def {name}(self, *arguments, **named):
        raise NotImplementedError
"""


def without(*names: str) -> str:
    return HALF.format(methods="".join(METHOD.format(name=name) for name in names))


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("DUR-08", ("begin",)),
        ("Q-21,Q-27", ("settle_jobs",)),
        ("DUR-06", ("list_names", "put_schedule", "list_schedules", "delete_schedule", "fire_schedules")),
    ],
)
def test_what_a_task_of_the_row_or_of_core_missed_is_named(
    author: Author, row: str, names: tuple[str, ...]
) -> None:
    (author.path / "conftest.py").write_text(without(*names), "utf-8")

    told = author.pytest(
        "--pyargs", "alkstore_contract_suite", "--alk-jobs", "1", "--alk-engine", "half", "--alk-row", row
    )

    assert "not implemented: " in told.stdout, told.stdout + told.stderr
    assert f"half  FAIL  not implemented: {names[-1]}: {row.split(',')[0]} " in told.stdout
    assert [line for line in told.stdout.splitlines() if line.startswith("FAILED")] == []


def test_a_name_is_found_below_causes_and_groups() -> None:
    async def list_names() -> None:
        raise NotImplementedError

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(list_names())

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(group())

    assert missing(caught.value) == "list_names"
    assert missing(ValueError("list_names")) == ""
    assert missing(None) == ""
