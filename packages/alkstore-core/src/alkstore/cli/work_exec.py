"""``alkstore work --exec``: a program is the handler; its exit status decides."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import click

from alkstore.values import Job
from alkstore.worker import Fail, Retry

__all__ = ["DATA_ERROR", "KILL_AFTER", "Program", "program", "surroundings", "verdict"]

DATA_ERROR: Final = 65
"""EX_DATAERR of sysexits.h: the input is wrong, and will be so the next time."""

KILL_AFTER: Final = 2.0
"""Seconds from SIGTERM to SIGKILL: less than the worker gives a cancelled handler's outcome."""

LINGER: Final = 0.5
"""Seconds that what a program left running may go on writing to its standard error."""

TAIL: Final = 800
"""Bytes of standard error that are kept as the reason; a retry's holds 1,024 in all."""


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
        transport, running = await asyncio.get_running_loop().subprocess_exec(
            _Running,
            *self._words,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.PIPE,
            env={**os.environ, **surroundings(job)},
            # Ctrl-C goes to all of a terminal's group: the worker stops, and its programs have their grace.
            start_new_session=True,
        )
        try:
            _feed(transport, job.payload_bytes)
            await running.ended.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    await running.silent.wait()
        except asyncio.CancelledError:
            await _end(transport, running)
            raise
        finally:
            if not running.ended.is_set():
                _signal(transport, SIGKILL)
            # What the program left running may hold its pipes open for ever.
            transport.close()
        return verdict(transport.get_returncode() or 0, running.tail.decode("utf-8", "replace").strip())


class _Running(asyncio.SubprocessProtocol):
    """Hears of a program's end at once. asyncio's own `Process.wait` waits, in some versions of Python, for its pipes too."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.silent = asyncio.Event()
        self.tail = bytearray()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()
        self.tail += data
        del self.tail[:-TAIL]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 2:
            self.silent.set()

    def process_exited(self) -> None:
        self.ended.set()


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


def _feed(transport: asyncio.SubprocessTransport, data: bytes) -> None:
    pipe = transport.get_pipe_transport(0)
    assert isinstance(pipe, asyncio.WriteTransport)
    pipe.write(data + b"\n")  # a program need not read it: then this goes nowhere
    pipe.close()


async def _end(transport: asyncio.SubprocessTransport, running: _Running) -> None:
    _signal(transport, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(KILL_AFTER):
            await running.ended.wait()
            return
    _signal(transport, SIGKILL)
    await running.ended.wait()


def _signal(transport: asyncio.SubprocessTransport, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if os.name == "nt":
            transport.terminate()
        else:  # the program's children too: it leads its session
            os.killpg(transport.get_pid(), number)
