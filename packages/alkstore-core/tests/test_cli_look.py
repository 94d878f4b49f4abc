"""Looking at a storage from the command line: queues, jobs, dead ones, schedules, locks, streams, wakes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hanging import HUNG

import alkstore
from alkstore import JobState, Store
from alkstore.cli.command import command
from alkstore.cli.output import ago, plain


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    monkeypatch.setenv("ALKSTORE_URL", url)
    return url


def run(*words: object, given: str | None = None) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], input=given)


def records(*words: object) -> list[dict[str, Any]]:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def prepare(url: str, work: Callable[[Store], Awaitable[object]]) -> None:
    async def go() -> None:
        async with alkstore.open(url) as store:
            await work(store)

    asyncio.run(go())


async def some_jobs(store: Store) -> None:
    queue = store.queue("mail")
    await queue.enqueue({"n": 1}, headers={"tenant": "t"})
    await queue.enqueue({"n": 2}, delay=600)
    for number, reason in ((3, "bad address\x1b[31m"), (4, "no route")):
        await queue.enqueue({"n": number}, priority=9)
        handle = await queue.claim_one()
        assert handle is not None
        await handle.fail(reason)
    await queue.enqueue({"n": 5}, priority=9)
    _ = await queue.claim_one(worker_id="ada")
    await store.outbox("hooks").enqueue("x")


def test_queues_are_counted_for_people_and_for_programs(url: str) -> None:
    prepare(url, some_jobs)

    table = run("queues").stdout.splitlines()
    mail, hooks = records("queues")

    assert table[0].split() == ["queue", "ready", "delayed", "processing", "stale", "dead", "oldest", "ready"]
    assert table[1].split()[:6] == ["mail", "1", "1", "1", "0", "2"]
    assert table[2].split()[:3] == ["outbox", "hooks", "1"]
    assert (mail["kind"], mail["name"], mail["ready"], mail["dead"]) == ("queue", "mail", 1, 2)
    assert (hooks["kind"], hooks["name"], hooks["ready"]) == ("outbox", "hooks", 1)
    assert mail["oldest_ready_age"] >= 0


def test_jobs_are_listed_by_state_error_and_page(url: str) -> None:
    prepare(url, some_jobs)

    assert [job["payload"]["n"] for job in records("jobs", "mail")] == [1, 2, 3, 4, 5]
    assert [job["payload"]["n"] for job in records("jobs", "mail", "--state", "pending")] == [1, 2]
    assert [job["payload"]["n"] for job in records("jobs", "mail", "--error", "route")] == [4]
    assert [job["payload"]["n"] for job in records("jobs", "mail", "--after", 1, "--limit", 2)] == [2, 3]
    assert [job["payload"] for job in records("jobs", "hooks", "--outbox")] == ["x"]
    page = run("jobs", "mail", "--limit", 3)
    assert page.stderr == "there may be more: --after 3\n"
    assert "ada" in run("jobs", "mail", "--state", "processing").stdout


def test_what_was_stored_cannot_command_the_terminal(url: str) -> None:
    prepare(url, some_jobs)

    for words in (("jobs", "mail"), ("dead", "show", "mail", 3)):
        result = run(*words)
        assert "\x1b" not in result.output
        assert "bad address\\x1b[31m" in result.output


def test_a_dead_job_is_shown_whole(url: str) -> None:
    prepare(url, some_jobs)

    shown = run("dead", "show", "mail", 4).stdout
    (record,) = records("dead", "show", "mail", 4)
    missing, alive = run("dead", "show", "mail", 99), run("dead", "show", "mail", 1)

    assert '  {\n    "n": 4\n  }\n' in shown
    assert shown.endswith("error\n  no route\n")
    assert (record["state"], record["last_error"], record["attempts"]) == ("dead", "no route", 1)
    assert (missing.exit_code, alive.exit_code) == (1, 1)
    assert "has no dead job 1: it is pending" in alive.stderr


def test_dead_jobs_are_redriven_by_id_by_error_or_all(url: str) -> None:
    prepare(url, some_jobs)

    by_id = run("dead", "redrive", "mail", 3, 1)
    by_error = run("dead", "redrive", "mail", "--error", "route", "--yes")
    everything = records("dead", "redrive", "mail", "--all", "--yes")

    assert (by_id.exit_code, by_id.stdout) == (1, "1 job redriven\n")
    assert by_id.stderr == "1 of them are not dead, or not of this queue\n"
    assert (by_error.exit_code, by_error.stdout) == (0, "1 job redriven\n")
    assert everything == [{"queue": "mail", "redriven": 0}]
    assert records("dead", "list", "mail") == []


@pytest.mark.parametrize("words", [("purge", "mail", "--all"), ("redrive", "mail", "--all")])
def test_nothing_is_purged_or_redriven_where_nobody_can_be_asked(url: str, words: tuple[str, ...]) -> None:
    prepare(url, some_jobs)

    refused = run("dead", *words, given="y\n")

    assert refused.exit_code == 2
    assert "there is nobody to be asked; give --yes if it is meant" in refused.stderr
    assert len(records("dead", "list", "mail")) == 2


def test_purging_wants_to_be_told_how_much(url: str) -> None:
    prepare(url, some_jobs)

    assert run("dead", "purge", "mail", "--yes").exit_code == 2
    assert records("dead", "purge", "mail", "--older-than", "1h", "--yes") == [{"queue": "mail", "purged": 0}]
    assert records("dead", "purge", "mail", "--all", "--yes") == [{"queue": "mail", "purged": 2}]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("answer", "left", "code"), [(b"n\n", 2, 1), (b"y\n", 0, 0)])
def test_on_a_terminal_it_asks(url: str, answer: bytes, left: int, code: int) -> None:
    import pty

    prepare(url, some_jobs)
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "alkstore", "dead", "purge", "mail", "--all"]
    with subprocess.Popen(line, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.write(ours, answer)
        _, err = process.communicate(timeout=HUNG)
    os.close(ours)
    os.close(theirs)

    assert process.returncode == code
    assert b"delete all dead jobs of queue 'mail' for ever? [y/N]" in err
    assert len(records("dead", "list", "mail")) == left


def test_schedules_and_locks_are_listed(url: str) -> None:
    async def some(store: Store) -> None:
        await store.schedule("nightly", "@every 1d", "mail", {"n": 1}, priority=3)
        _ = await store.try_lock("report", 60)

    prepare(url, some)

    (schedule,), (lock,) = records("schedules"), records("locks")
    assert (schedule["schedule"], schedule["spec"], schedule["queue"]) == ("nightly", "@every 1d", "mail")
    assert (schedule["payload"], schedule["priority"]) == ({"n": 1}, 3)
    assert (lock["lock"], lock["fence"]) == ("report", 1)
    assert "nightly" in run("schedules").stdout
    assert "report" in run("locks").stdout


def test_lists_without_entries_say_so_to_people_alone(url: str) -> None:
    prepare(url, some_events)

    said = {name: (run(name).stderr, run(name, "--json").stderr) for name in ("queues", "schedules", "locks")}

    assert said == {
        "queues": ("no queue has jobs\n", ""),
        "schedules": ("there are no schedules\n", ""),
        "locks": ("no lock is held\n", ""),
    }


def test_events_are_not_asked_for_from_before_the_first(url: str) -> None:
    prepare(url, some_events)

    assert run("tail", "orders", "--after", -1, "--no-follow").exit_code == 2


async def some_events(store: Store) -> None:
    for number in range(1, 6):
        await store.stream("orders").publish({"n": number}, key="k" if number == 5 else None)


def offsets(*words: object) -> list[int]:
    return [event["offset"] for event in records("tail", "orders", "--no-follow", *words)]


def test_a_stream_is_read_from_where_one_says_and_as_a_consumer_on_from_there(url: str) -> None:
    prepare(url, some_events)

    assert offsets() == []
    assert offsets("--after", 3) == [4, 5]
    assert offsets("--last", 1) == [5]
    assert offsets("--after", 0, "--limit", 2) == [1, 2]
    assert offsets("--consumer", "c", "--peek", "--limit", 2) == [1, 2]
    assert offsets("--consumer", "c", "--limit", 2) == [1, 2]
    assert offsets("--consumer", "c") == [3, 4, 5]
    assert offsets("--consumer", "c") == []
    assert run("tail", "orders", "--last", 1, "--no-follow").stdout.endswith('Z  k  {"n":5}\n')


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tail", "s", "--after", "1", "--last", "1"], "give one"),
        (["tail", "s", "--peek"], "--peek goes with --consumer"),
        (["queues", "--watch", "0"], "--watch takes a positive number"),
        (["dead", "redrive", "q", "1", "--all"], "which ones?"),
        (["jobs", " "], "queue name must not be blank"),
    ],
)
def test_what_cannot_be_is_a_matter_of_usage(url: str, words: list[str], said: str) -> None:
    prepare(url, some_events)

    result = run(*words)

    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    "words", [["queues"], ["jobs", "q"], ["dead", "list", "q"], ["schedules"], ["locks"], ["tail", "s"]]
)
def test_who_looks_by_a_wrong_name_leaves_nothing_behind(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = run(*words, "--url", "sqlite:///nothing.db")

    assert result.exit_code == 3
    assert (
        "nothing.db has no tables of alkstore yet, or older ones; if the name is right, alkstore migrate makes them"
        in result.stderr
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to one process")
def test_wakes_are_told_as_they_come_until_ctrl_c(url: str) -> None:
    prepare(url, some_events)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    line = [sys.executable, "-m", "alkstore", "listen", "orders", "--json"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == "listening on orders\n"
        prepare(url, lambda store: store.notify("orders"))
        told = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HUNG)

    assert (told["channel"], told["reconnected"]) == ("orders", False)
    assert (process.returncode, err) == (130, "stopped by Ctrl-C\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no broken pipes")
def test_a_reader_that_has_seen_enough_is_no_traceback(url: str) -> None:
    prepare(url, lambda store: store.queue("mail").enqueue_batch(["x" * 1_000] * 1_000))
    line = [sys.executable, "-m", "alkstore", "jobs", "mail", "--json", "--limit", "1000"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()

    assert (process.returncode, err) == (141, "")


def test_texts_of_others_are_shown_in_one_line() -> None:
    assert plain("a\nb\x07ä\x9b\u202e") == "a\\nb\\x07ä\\x9b\\u202e"
    assert plain("x" * 9, 5) == "xxxx…"


def test_a_state_is_said_by_its_value() -> None:
    assert [state.value for state in JobState] == ["pending", "processing", "dead"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.25, "0.2 s"), (61, "1 min 1 s"), (7_260, "2 h 1 min"), (90_000, "1 d 1 h"), (-90, "-1 min 30 s")],
)
def test_durations_are_shown_in_their_two_greatest_units(seconds: float, shown: str) -> None:
    import datetime as dt

    assert ago(dt.timedelta(seconds=seconds)) == shown
