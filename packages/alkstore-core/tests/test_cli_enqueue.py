"""``alkstore enqueue``: each line becomes a job, a bad one says where it is, and a run that was killed goes on."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hanging import HUNG

import alkstore
from alkstore import Job
from alkstore.cli.command import command
from alkstore.stop import StopToken


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(25)), "utf-8")
    return path


def enqueue(url: str, *words: object, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(command, ["enqueue", "--url", url, "q", *map(str, words)], input=given)


def jobs(url: str) -> list[Job]:
    async def read() -> list[Job]:
        async with alkstore.open(url) as store:
            return await store.queue("q").list(limit=10_000)

    return asyncio.run(read())


def payloads(url: str) -> list[Any]:
    return [job.payload for job in jobs(url)]


def test_each_line_of_a_file_becomes_a_job_in_order(url: str, lines: Path) -> None:
    result = enqueue(url, lines, "--batch", 10)

    assert result.exit_code == 0
    assert result.stdout.startswith("enqueued 25 jobs in ")
    assert payloads(url) == [{"n": number} for number in range(25)]


def test_standard_input_is_read_where_no_file_is_named_and_its_report_may_be_json(url: str) -> None:
    result = enqueue(url, "--json", given='1\r\n\n"zwei"\n  \n[3]')

    report = json.loads(result.stdout)
    assert (report["queue"], report["jobs"], report["jobs_before"]) == ("q", 3, 0)
    assert payloads(url) == [1, "zwei", [3]]


def test_several_files_and_standard_input_are_read_one_after_the_other(url: str, tmp_path: Path) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    first.write_bytes(b"\xef\xbb\xbf1\n2")
    last.write_bytes(b"4\n")

    result = enqueue(url, first, "-", last, given="3\n")

    assert result.exit_code == 0
    assert payloads(url) == [1, 2, 3, 4]


def test_options_become_the_stamps_of_every_job(url: str) -> None:
    options = ["--priority", "7", "--max-attempts", "9", "--visibility-timeout", "2m", "--base-delay", "1.5"]
    timed = ["--run-at", "2030-01-31T07:00:00Z", "--header", "tenant=a=b", "--expires", "30d"]

    result = enqueue(url, *options, *timed, given="1\n")

    assert result.exit_code == 0
    (job,) = jobs(url)
    assert (job.priority, job.max_attempts, job.headers) == (7, 9, {"tenant": "a=b"})
    assert (job.visibility_timeout.total_seconds(), job.base_delay.total_seconds()) == (120, 1.5)
    assert job.run_at.isoformat() == "2030-01-31T07:00:00+00:00"
    assert job.expires_at is not None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"a":\n', "this is no JSON"),
        (b"\xff\xfe\n", "this is no JSON"),
        (b"NaN\n", "this is no JSON"),
        (b"[" * 300 + b"]" * 300 + b"\n", "nested"),
    ],
)
def test_a_bad_line_of_a_file_says_where_it_is_and_nothing_is_enqueued(
    url: str, tmp_path: Path, line: bytes, why: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"1\n" * 5 + b"\n" + line + b"8\n")

    result = enqueue(url, path, "--batch", 2)

    assert result.exit_code == 1
    assert f"Error: {path}:7: " in result.stderr
    assert why in result.stderr
    assert "(nothing was enqueued)" in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "app.db").exists()


def test_the_lines_before_a_bad_one_of_standard_input_are_in_and_it_goes_on_once_that_is_mended(
    url: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    result = enqueue(url, "--resume", state, given="1\n2\nnull\nnope\n5\n")

    assert result.exit_code == 1
    assert "Error: standard input:4: this is no JSON" in result.stderr
    assert "(the lines before it are enqueued)" in result.stderr
    assert payloads(url) == [1, 2, None]
    again = enqueue(url, "--resume", state, given="1\n2\nnull\n4\n5\n")
    assert (again.exit_code, payloads(url)) == (0, [1, 2, None, 4, 5])


def test_a_run_that_is_repeated_with_its_state_enqueues_what_has_come_since(
    url: str, lines: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    first = enqueue(url, lines, "--resume", state, "--batch", 10)
    again = enqueue(url, lines, "--resume", state)
    with lines.open("a", encoding="utf-8") as file:
        file.write('{"n": 25}\n')
    more = enqueue(url, lines, "--resume", state)

    assert [result.exit_code for result in (first, again, more)] == [0, 0, 0]
    assert again.stdout.startswith("enqueued 0 jobs in ")
    assert "(25 were there from before)" in again.stdout
    assert payloads(url) == [{"n": number} for number in range(26)]


def test_a_batch_that_the_storage_refuses_is_told_by_its_lines_and_comes_again(
    url: str, lines: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    enqueue(url, given="")
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute(
            """CREATE TRIGGER refuse BEFORE INSERT ON alkstore_job WHEN CAST(NEW.payload AS TEXT) = '{"n":15}'
            BEGIN SELECT RAISE(ABORT, 'refused'); END"""
        )

    refused = enqueue(url, lines, "--resume", state, "--batch", 10)
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("DROP TRIGGER refuse")
    again = enqueue(url, lines, "--resume", state, "--batch", 10)

    assert refused.exit_code == 3
    assert refused.stderr.endswith(f"(lines 11 to 20 of {lines} are not in, all before are)\n")
    assert again.exit_code == 0
    assert payloads(url) == [{"n": number} for number in range(25)]


def test_a_state_of_another_run_is_refused_and_nothing_is_enqueued(
    url: str, lines: Path, tmp_path: Path
) -> None:
    state, other = tmp_path / "state", tmp_path / "other.jsonl"
    other.write_text("1\n", "utf-8")
    enqueue(url, lines, "--resume", state)

    refused = enqueue(url, other, "--resume", state)
    lines.write_text("changed\n" * 100, "utf-8")
    changed = enqueue(url, lines, "--resume", state)
    state.write_text("no state", "utf-8")
    broken = enqueue(url, lines, "--resume", state)

    assert refused.exit_code == 2
    assert "is of a run with files" in refused.stderr
    assert changed.exit_code == 1
    assert f"{lines}:25: this line was enqueued before, and is another one now" in changed.stderr
    assert broken.exit_code == 2
    assert "is no state of an enqueue" in broken.stderr
    assert len(payloads(url)) == 25


def test_a_state_is_of_one_file_though_another_folder_has_one_of_that_name(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        results.append(enqueue("sqlite:///app.db", lines, "--resume", tmp_path / "state"))

    first, refused = results
    assert first.exit_code == 0
    assert refused.exit_code == 2
    assert "is of a run with place" in refused.stderr
    assert not (tmp_path / "there" / "app.db").exists()


def test_a_state_that_does_not_say_all_of_its_place_is_refused(url: str, lines: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    enqueue(url, lines, "--resume", state)
    written = json.loads(state.read_text("utf-8"))
    earlier = {name: written[name] for name in ("storage", "queue", "files", "position")}
    state.write_text(json.dumps({"version": 1, **earlier}), "utf-8")

    refused = enqueue(url, lines, "--resume", state)

    assert refused.exit_code == 2
    assert (
        "is of an earlier version of alkstore, which did not write down the schema and host" in refused.stderr
    )
    assert len(payloads(url)) == 25


@pytest.mark.parametrize(
    ("url", "why"), [("nosuch://u:secret@h/x", "no engine for scheme"), ("sqlite://", "without a file")]
)
def test_a_state_of_what_is_no_storage_is_refused_in_one_line(
    lines: Path, tmp_path: Path, url: str, why: str
) -> None:
    refused = enqueue(url, lines, "--resume", tmp_path / "state")

    assert (refused.exit_code, why in refused.stderr) == (2, True)
    assert "secret" not in refused.output
    assert "Traceback" not in refused.output


@pytest.mark.parametrize(
    ("words", "given", "code", "said"),
    [
        (["enqueue", "q"], "1\n", 2, "which storage is meant? give --url, or set ALKSTORE_URL"),
        (["enqueue", "--url", "mem://", "q", "missing.jsonl"], "", 2, "missing.jsonl cannot be read"),
        (["enqueue", "--url", "mem://", " "], "1\n", 2, "queue name must not be blank"),
        (["enqueue", "--url", "mem://", "q", "--delay", "soon"], "1\n", 2, "is no duration"),
        (["enqueue", "--url", "mem://", "q", "--run-at", "2030-01-01"], "1\n", 2, "says no time zone"),
        (["enqueue", "--url", "mem://", "q", "--header", "x"], "1\n", 2, "is no header"),
        (
            ["enqueue", "--url", "mem://", "q", "--max-attempts", "0"],
            "1\n",
            2,
            "max_attempts must be at least 1",
        ),
        (["enqueue", "--url", "sqlite:///no/such/folder/a.db", "q"], "1\n", 3, "does not exist; create it"),
        (["enqueue", "--url", "nosuch://u:secret@h/x", "q"], "1\n", 2, "no engine for scheme"),
    ],
)
def test_what_cannot_be_is_one_line_and_an_exit_code(
    words: list[str], given: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALKSTORE_URL", raising=False)

    result = CliRunner().invoke(command, words, input=given)

    assert result.exit_code == code
    assert said in result.stderr
    assert "secret" not in result.output
    assert "Traceback" not in result.output


def test_the_environment_may_name_the_storage(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALKSTORE_URL", url)

    assert CliRunner().invoke(command, ["enqueue", "q"], input="1\n").exit_code == 0
    assert payloads(url) == [1]


# ---------------------------------------------------------------- in a process of its own


def begin(url: str, *words: object) -> "subprocess.Popen[bytes]":
    line = [sys.executable, "-m", "alkstore", "enqueue", "--url", url, "q", *map(str, words)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
    # A shell's background job ignores SIGINT, and its children would too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
    finally:
        signal.signal(signal.SIGINT, before)


async def take(store: alkstore.Store, count: int) -> list[Any]:
    taken = []
    async with asyncio.timeout(HUNG):
        async for handle in store.queue("q").claims(stop=StopToken()):
            taken.append(handle.job.payload)
            await handle.ack()
            if len(taken) == count:
                break
    return taken


async def test_a_run_that_is_killed_goes_on_and_no_line_is_lost(url: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with alkstore.open(url) as store:
        with begin(url, "--resume", state, "--batch", 10) as process:
            assert process.stdin is not None
            process.stdin.write(b"".join(b"%d\n" % number for number in range(30)))
            process.stdin.flush()  # and more is to come
            first = await take(store, 30)
            process.kill()
        again = enqueue_in_thread(url, "--resume", state, "--batch", 10, given=range(55))
        result = await again
        rest = [job.payload for job in await store.queue("q").list(limit=1_000)]

    assert result.exit_code == 0
    seen = Counter(first + rest)
    assert set(seen) == set(range(55))
    # At most the batch whose landing was not written down yet is in twice.
    assert sum(seen.values()) - 55 in (0, 10)


def enqueue_in_thread(url: str, *words: object, given: range) -> "asyncio.Future[Result]":
    text = "".join(f"{number}\n" for number in given)
    return asyncio.ensure_future(asyncio.to_thread(enqueue, url, *words, given=text))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes of this kind")
def test_a_named_pipe_is_opened_once_and_read_to_its_end(url: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("1\n2\n", "utf-8"))
    writer.start()

    result = enqueue(url, pipe)
    writer.join()

    assert (result.exit_code, payloads(url)) == (0, [1, 2])


def test_a_folder_is_no_file(url: str, tmp_path: Path) -> None:
    refused = enqueue(url, tmp_path)

    assert refused.exit_code == 2
    assert f"{tmp_path} cannot be read: " in refused.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to one process")
async def test_ctrl_c_ends_a_run_that_waits_for_input_and_says_how_to_go_on(url: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with alkstore.open(url) as store:
        with begin(url, "--resume", state) as process:
            assert process.stdin is not None
            process.stdin.write(b"1\n2\n")
            process.stdin.flush()
            assert await take(store, 2) == [1, 2]
            process.send_signal(signal.SIGINT)
            out, err = await asyncio.to_thread(process.communicate)

    assert process.returncode == 130
    assert out.startswith(b"enqueued 2 jobs in ")
    assert err == b"stopped at standard input:2; --resume goes on from here\n"
