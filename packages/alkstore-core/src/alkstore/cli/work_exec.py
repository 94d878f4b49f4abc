"""``alkstore work --exec``: a program is the handler; its exit status decides."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import click

from alkstore.values import Job
from alkstore.worker import Fail, Retry

__all__ = ["DATA_ERROR", "KILL_AFTER", "Program", "program"]

DATA_ERROR: Final = 65
"""EX_DATAERR of sysexits.h: the input is wrong, and will be so the next time."""

KILL_AFTER: Final = 2.0
"""Seconds from SIGTERM to SIGKILL: less than the worker gives a cancelled handler's outcome."""

LINGER: Final = 0.5
"""Seconds that what a program left running may go on writing to its standard error."""

TAIL: Final = 800
"""Bytes of standard error that are kept as the reason; a retry's holds 1,024 in all."""

CHUNK: Final = 1 << 16


def program(command: str) -> tuple[str, ...]:
    """Split a command line as a shell does; it is run without one.

    Raises:
        UsageError: There is none, or no such program.
    """
    try:
        words = tuple(shlex.split(command, posix=os.name != "nt"))
    except ValueError as error:
        raise click.UsageError(f"--exec cannot be split into words: {error}") from error
    if not words or shutil.which(words[0]) is None:
        name = words[0] if words else ""
        raise click.UsageError(f"--exec names no program that could be run: {name!r}; a shell is sh -c '…'")
    return words


class Program:
    """A handler that runs a program for each job."""

    def __init__(self, words: Sequence[str], *, as_json: bool) -> None:
        self._words = words
        # Or the records of --json and what the programs print would be one stream.
        self._output = 2 if as_json else None

    async def __call__(self, job: Job) -> Retry | Fail | None:
        process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=asyncio.subprocess.PIPE,
            stdout=self._output,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **surroundings(job)},
            # Ctrl-C goes to all of a terminal's group: the worker stops, and its programs have their grace.
            start_new_session=True,
        )
        try:
            tail = await _accompany(process, job.payload_bytes)
        except asyncio.CancelledError:
            await _end(process)
            raise
        finally:
            if process.returncode is None:
                _signal(process, SIGKILL)
            # What the program left running may hold its pipes open for ever.
            process._transport.close()  # type: ignore[attr-defined]
        return verdict(process.returncode or 0, tail)


SIGKILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Windows has one end only."""


def surroundings(job: Job) -> dict[str, str]:
    """Give what a program finds in its environment."""
    return {
        "ALKSTORE_QUEUE": job.queue,
        "ALKSTORE_JOB_ID": str(job.id),
        "ALKSTORE_ATTEMPT": str(job.attempts),
        "ALKSTORE_MAX_ATTEMPTS": str(job.max_attempts),
        "ALKSTORE_HEADERS": json.dumps(dict(job.headers)),
    }


def verdict(status: int, tail: str) -> Retry | Fail | None:
    """Say what an exit status means: 0 done, 65 never again, anything else again later."""
    if status == 0:
        return None
    said = f": {tail}" if tail else ""
    if status == DATA_ERROR:
        return Fail(f"exit status {status}{said}")
    if status < 0:
        return Retry(f"killed by {_name(-status)}{said}")
    return Retry(f"exit status {status}{said}")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _accompany(process: asyncio.subprocess.Process, data: bytes) -> str:
    """Feed a program and pass on what it complains of, until it ends; give the end of that."""
    tail = bytearray()
    assert process.stderr is not None
    feeding = asyncio.ensure_future(_feed(process, data))
    hearing = asyncio.ensure_future(_relay(process.stderr, tail))
    try:
        await process.wait()
        await asyncio.wait((hearing,), timeout=LINGER)
    finally:
        feeding.cancel()
        hearing.cancel()
        await asyncio.wait((feeding, hearing))
    return tail.decode("utf-8", "replace").strip()


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # a program need not read its input
        process.stdin.write(data + b"\n")
        await process.stdin.drain()
        process.stdin.close()


async def _relay(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while chunk := await stream.read(CHUNK):
        sys.stderr.buffer.write(chunk)
        sys.stderr.buffer.flush()
        tail += chunk
        del tail[:-TAIL]


async def _end(process: asyncio.subprocess.Process) -> None:
    _signal(process, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(KILL_AFTER):
            await process.wait()
            return
    _signal(process, SIGKILL)
    await process.wait()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if os.name == "nt":
            process.terminate()
        else:  # the program's children too: it leads its session
            os.killpg(process.pid, number)
