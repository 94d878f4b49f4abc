"""A worker process: runs the cases that it is told to, one after the other, and sends what came of each.

It is a fork of the process that collected the cases, so it has the columns that a ``conftest.py`` registered, and needs no
time to import anything.
"""

import logging
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO, Final, TextIO

from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case

__all__ = ["Done", "Execute", "Warned", "said", "serve"]

Execute = Callable[[Case], Outcome]

MOST_SAID: Final = 100_000
"""Bytes of what a case writes that are sent on; the last ones, which tell how it ended."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning that nothing had silenced."""

    category: type[Warning]
    text: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a case in another process.

    Attributes:
        said: What was written to stdout and stderr, and logged, meanwhile.
    """

    outcome: Outcome
    said: str = ""
    warned: Sequence[Warned] = ()


def serve(channel: Connection, output: IO[bytes], cases: Sequence[Case], execute: Execute) -> None:
    """Run the cases whose places the channel brings, until it brings None, or ends because nobody is there any more."""
    # A Ctrl-C at the terminal is for the process that collected the cases; that one sends us the same signal when a case is to
    # be broken off, since an event loop survives no other exception out of nowhere.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _write_to(output)
    while True:
        try:
            place = channel.recv()
        except EOFError:
            return
        if place is None:
            return
        channel.send(_done(cases[place], execute, output))


def _write_to(output: IO[bytes]) -> None:
    # What stood here before belongs to the other process; to flush it would say the same twice.
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    sys.stdout, sys.stderr = _text(1), _text(2)
    logging.getLogger().handlers[:] = [logging.StreamHandler(sys.stderr)]


def _text(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _done(case: Case, execute: Execute, output: IO[bytes]) -> Done:
    with warnings.catch_warnings(record=True) as caught:
        outcome = _outcome(case, execute)
    warned = [
        Warned(_known(entry.category), str(entry.message), entry.filename, entry.lineno) for entry in caught
    ]
    text = said(output)
    if text:
        os.ftruncate(output.fileno(), 0)
        os.lseek(output.fileno(), 0, os.SEEK_SET)
    return Done(outcome, text, warned)


def _outcome(case: Case, execute: Execute) -> Outcome:
    try:
        return execute(case)
    except (
        Exception,
        SystemExit,
    ) as error:  # as pytest does: whatever becomes of a case, the next one is run
        traceback.print_exc()
        return Outcome(status=Status.FAIL, reason=f"the case could not run: {error!r}")


def _known(category: type[Warning]) -> type[Warning]:
    """Give the category, or the kind it is of if it has no name by which another process finds it."""
    try:
        pickle.dumps(category)
    except (pickle.PicklingError, AttributeError):
        return next(kind for kind in category.__mro__ if kind.__module__ == Warning.__module__)
    return category


def said(output: IO[bytes]) -> str:
    """Give what was written since the last case, in whichever process: the file is the same in both."""
    size = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), MOST_SAID, max(size - MOST_SAID, 0)).decode("utf-8", "replace")
