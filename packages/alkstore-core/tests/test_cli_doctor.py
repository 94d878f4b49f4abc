"""``alkstore doctor`` finds what is wrong, says what to do, and is silent about what is well."""

import asyncio
import datetime as dt
import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import alkstore
from alkstore import Store
from alkstore.cli.command import command
from alkstore.names import SCHEDULER_LOCK
from alkstore.testing import ManualClock


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "app.db"
    monkeypatch.setenv("ALKSTORE_URL", f"sqlite:///{path}")
    prepare(path, nothing)
    return path


async def nothing(store: Store) -> None:
    """Leave the storage empty."""


def prepare(path: Path, work: Callable[[Store], Awaitable[object]], *, ago: float = 0) -> None:
    async def go() -> None:
        clock = ManualClock(dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago))
        async with alkstore.open(f"sqlite:///{path}", clock=clock) as store:
            await work(store)

    asyncio.run(go())


def doctor(*words: str) -> Result:
    return CliRunner().invoke(command, ["doctor", *words])


def findings(*words: str) -> list[tuple[str, str, str]]:
    records = map(json.loads, doctor(*words, "--json").stdout.splitlines())
    return [(each["finding"], each["kind"], each["text"]) for each in records if "finding" in each]


def facts() -> dict[str, Any]:
    records = map(json.loads, doctor("--json").stdout.splitlines())
    return {each["fact"]: each["value"] for each in records if "fact" in each}


def test_a_storage_that_is_well_has_no_findings(path: Path) -> None:
    result = doctor()

    assert result.exit_code == 0
    assert result.stdout.endswith("\nnothing is wrong\n")
    found = facts()
    assert found["alkstore-core"] == alkstore.__version__
    assert (found["journal-mode"], found["queues"], found["clock-offset-s"]) == ("wal", 0, None)
    assert found["wake-ms"] > 0


def test_jobs_that_nobody_claims_are_a_problem_beyond_the_limit(path: Path) -> None:
    prepare(path, lambda store: store.queue("mail").enqueue(1), ago=600)

    result = doctor()

    assert result.exit_code == 1
    assert "problem: queue 'mail': 1 ready job, the oldest for 10 min" in result.stdout
    assert "\n  run a worker for it" in result.stdout
    assert doctor("--oldest", "1h").exit_code == 0


async def a_dead_one(store: Store) -> None:
    await store.outbox("hooks").enqueue(1)

    async def refuse(handle: alkstore.JobHandle) -> None:
        await handle.fail("gone")

    await store.outbox("hooks").run_once(refuse)


def test_dead_jobs_are_a_problem_beyond_the_limit(path: Path) -> None:
    prepare(path, a_dead_one)

    assert findings() == [("dead", "problem", "outbox 'hooks': 1 dead job")]
    assert "alkstore dead list hooks --outbox says why" in doctor().stdout
    assert doctor("--dead", "1").exit_code == 0


async def one_of_a_hostile_name(store: Store) -> None:
    await store.queue("mail; rm -rf ~").enqueue(1)
    handle = await store.queue("mail; rm -rf ~").claim_one()
    assert handle is not None
    await handle.fail("gone")


def test_advice_can_be_pasted_into_a_shell_whatever_the_queue_is_called(path: Path) -> None:
    prepare(path, one_of_a_hostile_name)

    assert "alkstore dead list 'mail; rm -rf ~' says why" in doctor().stdout


async def a_claim(store: Store) -> None:
    await store.queue("mail", visibility_timeout=1).enqueue(1)
    _ = await store.queue("mail").claim_one()


def test_a_claim_that_ended_and_was_not_taken_over_is_stuck(path: Path) -> None:
    prepare(path, a_claim, ago=120)

    found = findings("--oldest", "1h")

    assert found == [("stuck-claims", "problem", "queue 'mail': 1 claim ended without being taken over")]


def test_schedules_without_a_leader_are_a_problem(path: Path) -> None:
    prepare(path, lambda store: store.schedule("nightly", "@every 1d", "mail", 1))

    assert findings() == [("no-scheduler", "problem", "nobody leads, so 1 schedule will not fire")]
    assert (facts()["schedules"], facts()["scheduler-lease-until"]) == (1, None)


def test_schedules_that_are_late_under_a_leader_are_a_problem(path: Path) -> None:
    async def leave_behind(store: Store) -> None:
        await store.schedule("nightly", "@every 1h", "mail", 1)
        await store._engine.take_lock(SCHEDULER_LOCK, 86_400_000_000)

    prepare(path, leave_behind, ago=7_200)

    assert findings() == [
        ("late-schedules", "problem", "1 schedule overdue although somebody leads: nightly")
    ]
    assert facts()["scheduler-lease-until"].endswith("+00:00")


def test_a_file_in_another_journal_mode_is_a_problem(path: Path) -> None:
    # Not by the command, whose store sets it right: by what looks at the file alone.
    from alkstore.opening import find

    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = delete")
    registration, url = find(f"sqlite:///{path}", {})
    assert registration.examine is not None

    async def examine() -> list[str]:
        assert registration.examine is not None
        return [finding.name for finding in (await registration.examine(url, {})).findings]

    assert asyncio.run(examine()) == ["journal-mode"]


def test_doctor_makes_nothing_where_nothing_is(tmp_path: Path) -> None:
    result = doctor("--url", f"sqlite:///{tmp_path / 'nothing.db'}")

    assert result.exit_code == 3
    assert "has no tables of alkstore yet" in result.stderr
    assert list(tmp_path.iterdir()) == []
