"""The demo's worker processes are killed, stopped and orphaned, and its proof finds what is lost."""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from click.testing import CliRunner
from hanging import HUNG

import alkstore
from alkstore.cli.command import command
from alkstore.demo import run
from alkstore.demo_crew import Crew, CrewPlan
from alkstore.demo_proof import Effect, judge

FILES = 40
"""Enough for two workers to be busy for longer than the first kill is away, on any machine."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "small.py").write_text("VALUE = 1\n", "utf-8")
    return root


@pytest.fixture
def large_tree(tree: Path) -> Path:
    for number in range(FILES):
        shutil.copyfile(argparse.__file__, tree / f"copy{number}.py")
    return tree


@pytest.fixture
def url(tmp_path: Path) -> str:
    return "sqlite:///" + (tmp_path / "demo.db").as_posix()


async def test_workers_that_are_killed_lose_nothing(large_tree: Path, tmp_path: Path, url: str) -> None:
    async with asyncio.timeout(HUNG), alkstore.open(url) as store:
        report = await run(store, large_tree, tmp_path, plan=CrewPlan(url, 2, kills=3, seed=1))

    assert report.problems == []
    assert report.crew is not None
    assert report.proof is not None
    assert 1 <= report.crew.kills <= 3, report.crew.remark
    assert (report.proof.enqueued, report.proof.acked + report.proof.dead) == (FILES + 4, FILES + 4)
    assert (report.proof.lost, report.proof.doubled, report.proof.unknown) == ([], [], [])


async def test_a_crew_that_killed_nobody_says_why(url: str) -> None:
    stop = alkstore.StopToken()
    stop.cancel()
    crew = Crew(CrewPlan(url, 2, kills=3), "demo")

    await crew.run(stop)

    assert (crew.report.kills, crew.problems()) == (0, [])
    assert crew.report.remark == "none was killed: the work was done before; index more files"


async def test_a_job_that_somebody_takes_away_makes_the_proof_fail(
    tree: Path, tmp_path: Path, url: str
) -> None:
    demo = [sys.executable, "-m", "alkstore", "demo", str(tree), "--url", url, "--processes", "1"]
    async with asyncio.timeout(HUNG), alkstore.open(url) as store:
        process = await begun(demo, tmp_path)
        lost = await take_one_away(store)
        output = (await process.communicate())[0].decode()

    assert process.returncode == 1
    promise = "it is not so that every enqueued job is acked or dead"
    assert f"{promise} (broken by 1 of 4 jobs: id {lost})" in " ".join(output.split())
    assert "verdict: good" not in output


async def begun(command: list[str], folder: Path) -> asyncio.subprocess.Process:
    # A demo that is killed cannot remove its temporary folder.
    env = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder)}
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=env)
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"runs on")
    return process


async def take_one_away(store: alkstore.Store) -> int:
    while True:
        for name in await store.queues():
            for job in await store.queue(name).list(state=alkstore.JobState.PENDING):
                if name.endswith(".files") and await store.queue(name).cancel(job.id):
                    return job.id


async def test_workers_end_with_a_demo_that_is_killed(large_tree: Path, tmp_path: Path, url: str) -> None:
    demo = [sys.executable, "-m", "alkstore", "demo", str(large_tree), "--url", url, "--processes", "2"]
    async with asyncio.timeout(HUNG), alkstore.open(url) as store:
        process = await begun(demo, tmp_path)
        while not await at_work(store):
            assert process.returncode is None
        process.kill()
        # The workers have inherited it: it ends with the last of them.
        await process.communicate()
        held = await at_work(store)

    assert held == []


async def at_work(store: alkstore.Store) -> list[str | None]:
    return [
        job.worker_id
        for name in await store.queues()
        for job in await store.queue(name).list(state=alkstore.JobState.PROCESSING)
        if name.endswith(".files")
    ]


async def test_workers_that_end_by_themselves_are_reported(tree: Path, tmp_path: Path, url: str) -> None:
    elsewhere = "sqlite:///" + (tmp_path / "absent" / "demo.db").as_posix()

    async with asyncio.timeout(HUNG), alkstore.open(url) as store:
        report = await run(store, tree, tmp_path, plan=CrewPlan(elsewhere, 1))

    assert "no worker process ends by itself: code 1, 1, 1" in report.problems
    assert "every enqueued job is acked or dead (broken by 4 of 4 jobs: id 1, 2, 3, 4)" in report.problems


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "mem://", "--processes", "2"], "mem:// cannot be shared with worker processes"),
        (["--kill"], "--processes 3 --kill"),
        (["--processes", "-1"], "--processes"),
        (["--url", "absent://"], "no engine for scheme 'absent'"),
    ],
)
def test_what_cannot_be_done_is_refused(tree: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command, ["demo", str(tree), *arguments])

    assert result.exit_code != 0
    assert message in result.stderr
    assert "verdict" not in result.stdout


WITHOUT_SQLITE = """
import importlib.metadata, sys
found = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **what: [it for it in found(**what) if it.name != "sqlite"]
from alkstore.cli import main
main()
"""


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_where_sqlite_is_missing_the_demo_says_what_to_install(tree: Path, options: list[str]) -> None:
    demo = [sys.executable, "-c", WITHOUT_SQLITE, "demo", str(tree), *options]

    ended = subprocess.run(demo, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "install alkstore-sqlite" in ended.stderr
    assert ("alkstore demo --url mem://" in ended.stderr) == (not options)


def test_the_proof_counts_what_became_of_each_job() -> None:
    effects = [Effect(1, 1), Effect(2, 3), Effect(3, 1), Effect(3, 2), Effect(4, 1), Effect(9, 1)]

    proof = judge([1, 2, 3, 4, 5, 6], effects, dead=[4, 5])

    assert (proof.enqueued, proof.acked, proof.dead, proof.claimed_again) == (6, 5, 2, 2)
    assert (proof.lost, proof.doubled, proof.unknown) == ([6], [3, 4], [9])
    assert proof.problems() == [
        "every enqueued job is acked or dead (broken by 1 of 6 jobs: id 6)",
        "no job is acked twice, or acked and dead (broken by 2 of 6 jobs: id 3, 4)",
        "nothing is acked or dead but what was enqueued (broken by 1 more than 6 jobs: id 9)",
    ]


def test_a_proof_names_a_few_of_many_jobs() -> None:
    proof = judge(range(1, 1_001), [], [])

    assert proof.problems() == [
        "every enqueued job is acked or dead (broken by 1,000 of 1,000 jobs: id 1, 2, 3, 4, 5, …)"
    ]
