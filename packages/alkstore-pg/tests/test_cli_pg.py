"""The command line on a server: lines become jobs, workers are killed and stopped, and the doctor looks."""

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner, Result
from hanging import HUNG

import alkstore
from alkstore.cli.command import command
from alkstore.cli.storage import Storage
from alkstore_pg import examining
from alkstore_pg.surroundings import Options

APP = """
from alkstore import Job, Store
from alkstore.worker import Worker

async def note(job: Job, store: Store) -> None:
    await store.stream("seen").publish(job.payload)

def make(store):
    return Worker(store, {"q": note})
"""


async def run(*words: str, given: str | None = None) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, command, words, input=given)


def begin(dsn: str, folder: Path) -> "subprocess.Popen[bytes]":
    line = [sys.executable, "-m", "alkstore", "work", "cli_app:make", "--url", dsn]
    return subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def at_work(process: "subprocess.Popen[bytes]") -> None:
    assert process.stderr is not None
    while b"is at work on" not in process.stderr.readline():
        assert process.poll() is None


@pytest.mark.skipif(sys.platform == "win32", reason="ends processes by signals")
async def test_every_line_is_worked_on_though_two_workers_are_killed_and_one_is_stopped(
    dsn: str, tmp_path: Path
) -> None:
    count, found = 500, list[Any]()
    (tmp_path / "cli_app.py").write_text(APP, "utf-8")
    lines = "".join(f"{number}\n" for number in range(count))
    assert (await run("enqueue", "q", "--url", dsn, "--visibility-timeout", "5", given=lines)).exit_code == 0
    processes: list[subprocess.Popen[bytes]] = []
    try:
        async with (
            asyncio.timeout(3 * HUNG),
            alkstore.open(dsn) as store,
            store.stream("seen").subscribe(after=0) as events,
        ):
            processes += [begin(dsn, tmp_path) for _ in range(3)]
            for process in processes:
                await asyncio.to_thread(at_work, process)
            while len(found) < 50:
                found += [event.payload for event in await events.recv_page()]
            for process, number in zip(processes, (9, 9, signal.SIGTERM), strict=True):
                process.send_signal(number)
            out, _ = await asyncio.to_thread(processes[2].communicate)
            processes.append(begin(dsn, tmp_path))
            while len(set(found)) < count:
                found += [event.payload for event in await events.recv_page()]
    finally:
        for process in processes:
            with process:
                process.kill()

    assert processes[2].returncode == 0
    assert b"lost 0" in out
    assert sum(Counter(found).values()) - count <= 20


async def test_the_doctor_finds_nothing_wrong_with_a_new_schema(dsn: str) -> None:
    assert (await run("doctor", "--url", dsn)).exit_code == 3
    assert (await run("migrate", "--url", dsn)).exit_code == 0

    result = await run("doctor", "--url", dsn, "--json")

    assert result.exit_code == 0, result.output
    facts = {each["fact"]: each["value"] for each in map(json.loads, result.stdout.splitlines())}
    assert facts["postgresql"]
    assert facts["schema-bytes"] > 0
    assert abs(facts["clock-offset-s"]) < 60
    assert facts["wake-ms"] > 0


async def test_who_holds_old_rows_back_is_found(dsn: str) -> None:
    await run("migrate", "--url", dsn)
    holder = await asyncpg.connect(dsn, server_settings={"application_name": "report"})
    try:
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await holder.execute("SELECT 1")
        diagnosis = await examining.examine(Options.checked(dsn), old=0)
    finally:
        await holder.close()

    assert {finding.name for finding in diagnosis.findings} == {"old-snapshot", "idle-in-transaction"}
    assert all("(report)" in finding.text for finding in diagnosis.findings)


async def test_a_password_is_never_printed(dsn: str) -> None:
    url = "postgresql://ada:secret@127.0.0.1:1/shop"

    for words in (["queues"], ["doctor"], ["enqueue", "q"], ["migrate"]):
        result = await run(*words, "--url", url, given="1\n")
        assert result.exit_code in (1, 3)
        assert "secret" not in result.output


@pytest.mark.parametrize("words", [["--schema", "b"], ["--option", "schema=b"], []])
async def test_a_state_of_another_schema_is_refused_and_that_one_gets_its_lines_with_a_state_of_its_own(
    dsn: str, tmp_path: Path, words: list[str]
) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("1\n2\n3\n", "utf-8")
    common = ["enqueue", "q", str(lines), "--url", dsn]

    first = await run(*common, "--schema", "a", "--resume", str(tmp_path / "a.state"))
    refused = await run(*common, *words, "--resume", str(tmp_path / "a.state"))
    own = await run(*common, *words, "--resume", str(tmp_path / "b.state"))

    assert first.exit_code == 0
    assert refused.exit_code == 2
    assert "is of a run with schema 'a', this one has" in refused.stderr
    assert (own.exit_code, own.stdout.startswith("enqueued 3 jobs in ")) == (0, True)


PLACE = Storage("postgresql://ada:s3cret@/shop?host=db&password=s3cret", "a", {})


@pytest.mark.parametrize(
    "same",
    [
        Storage("postgresql://ada:chang3d@/shop?host=db&sslmode=require", "a", {}),
        Storage("postgresql://bob@/shop?host=db&password=chang3d", "a", {"statement_cache_size": 0}),
        Storage("postgresql:///shop?user=bob&host=db", None, {"schema": "a", "pool_size": 3}),
    ],
)
def test_another_password_or_way_of_connecting_is_no_other_place(same: Storage) -> None:
    assert same.place() == PLACE.place()
    assert "s3cret" not in str(PLACE.place())


@pytest.mark.parametrize(
    "other",
    [
        Storage("postgresql://ada@/shop?host=other", "a", {}),
        Storage("postgresql://ada@/shop?host=db&port=6432", "a", {}),
        Storage("postgresql://ada@db:6432/shop", "a", {}),
        Storage("postgresql://ada@/?host=db&dbname=other", "a", {}),
        Storage("postgresql://ada@/?host=db", "a", {}),
        Storage("postgresql://ada@/shop?host=db", "b", {}),
        Storage("postgresql://ada@/shop?host=db", None, {}),
    ],
)
def test_another_server_database_or_schema_is_another_place(other: Storage) -> None:
    assert other.place() != PLACE.place()


def test_where_the_url_names_no_host_the_one_of_the_environment_is_the_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = Storage("postgresql:///shop", None, {})
    monkeypatch.setenv("PGHOST", "db")
    before = storage.place()
    monkeypatch.setenv("PGHOST", "other")

    assert storage.place() != before
