"""Lines of JSON from files and standard input, in batches that know where they end."""

import hashlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, Final

from alkstore import payload
from alkstore.cli import USAGE
from alkstore.cli.storage import Failure
from alkstore.errors import AlkstoreError, show

__all__ = ["STANDARD_INPUT", "BadLine", "Batch", "Position", "Source", "batches", "sources"]

STANDARD_INPUT: Final = "-"
CHUNK: Final = 1 << 18
"""Bytes that are taken at once of what comes in over time."""

MARK: Final = b"\xef\xbb\xbf"
"""What some editors put before the first line of UTF-8."""


class BadLine(Exception):
    """A line that is no payload: where it is, and why."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far the lines are in.

    Attributes:
        file: Which of the files is being read, from 0.
        offset: Bytes of it that are in.
        line: Lines of it that are in.
        jobs: Jobs that are in, of all files.
        last: Where the last line that is in begins.
        digest: What that line was, to see that it is the same file.
    """

    file: int = 0
    offset: int = 0
    line: int = 0
    jobs: int = 0
    last: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Payloads that follow one another, and the position once they are in; with what is wrong with the line behind."""

    payloads: Sequence[object]
    position: Position
    problem: BadLine | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or standard input.

    Attributes:
        name: Its absolute path, or -.
        shown: What messages call it.
        size: Its bytes; None if its end is not known, as of a pipe.
    """

    name: str
    shown: str
    size: int | None

    def open(self) -> BinaryIO:
        """Open it for reading."""
        return _standard_input() if self.name == STANDARD_INPUT else open(self.name, "rb")


def sources(paths: Sequence[str]) -> list[Source]:
    """Look at the files before anything is read.

    Raises:
        Failure: One cannot be read.
    """
    return [_source(path) for path in paths or (STANDARD_INPUT,)]


def _source(path: str) -> Source:
    if path == STANDARD_INPUT:
        return Source(path, "standard input", None)
    try:
        found = os.stat(path)
        # A named pipe is opened once: its writer would hear that its reader has gone.
        if not stat.S_ISFIFO(found.st_mode):
            open(path, "rb").close()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", USAGE) from error
    return Source(os.path.abspath(path), path, found.st_size if stat.S_ISREG(found.st_mode) else None)


def _standard_input() -> BinaryIO:
    stream = sys.stdin.buffer
    try:
        # A reader of our own: Python's is closed at the end, which must not wait for a thread that still reads.
        return open(stream.fileno(), "rb", closefd=False)
    except OSError:  # a test's, which is no file
        return stream


# ---------------------------------------------------------------- batches


def batches(given: Sequence[Source], start: Position, size: int) -> Iterator[Batch]:
    """Read on from a position, ``size`` lines a batch at most. Lines of white space are passed over. Blocks.

    What comes in over time is given as it comes: a batch does not wait to be full.

    Raises:
        Failure: What was read before is not there any more.
    """
    position = start
    for number in range(start.file, len(given)):
        source = given[number]
        position = position if number == start.file else Position(number, jobs=position.jobs)
        with source.open() as stream:
            _skip(stream, source, position)
            for page in _pages(stream, size, source.size is None):
                batch = _batch(source, page, position)
                position = batch.position
                yield batch
                if batch.problem is not None:
                    return


def _skip(stream: BinaryIO, source: Source, start: Position) -> None:
    """Go to where it was left, if it is the same file still."""
    if not start.offset:
        return
    if source.size is not None:
        stream.seek(start.last)
    else:
        left = start.last
        while left and (passed := stream.read(min(left, CHUNK))):
            left -= len(passed)
    line = stream.read(start.offset - start.last)
    if _digest(line) != start.digest:
        raise Failure(
            f"{source.shown}:{start.line}: this line was enqueued before, and is another one now; "
            "go on with the same input, or begin anew with another state file"
        )


def _pages(stream: BinaryIO, size: int, is_live: bool) -> Iterator[list[bytes]]:
    if not is_live:
        while page := list(islice(stream, size)):
            yield page
        return
    rest = b""
    while chunk := stream.read1(CHUNK):  # type: ignore[attr-defined]  # every buffered stream has it
        *whole, rest = (rest + chunk).split(b"\n")
        lines = [line + b"\n" for line in whole]
        for begin in range(0, len(lines), size):
            yield lines[begin : begin + size]
    if rest:
        yield [rest]


def _batch(source: Source, page: Sequence[bytes], start: Position) -> Batch:
    payloads: list[object] = []
    problem = None
    taken = 0
    for taken, line in enumerate(page):
        text = line.removeprefix(MARK) if start.offset == 0 and taken == 0 else line
        if not text.strip():
            continue
        try:
            payloads.append(_payload(text, source, start.line + taken + 1))
        except BadLine as error:
            problem = error
            break
    else:
        taken = len(page)
    return Batch(payloads, _after(start, page[:taken], len(payloads)), problem)


def _after(start: Position, lines: Sequence[bytes], jobs: int) -> Position:
    if not lines:
        return start
    end = start.offset + sum(map(len, lines))
    return Position(
        file=start.file,
        offset=end,
        line=start.line + len(lines),
        jobs=start.jobs + jobs,
        last=end - len(lines[-1]),
        digest=_digest(lines[-1]),
    )


def _payload(line: bytes, source: Source, number: int) -> object:
    try:
        value = payload.decode(line)
        payload.encode(value)
    except AlkstoreError as error:
        cause = error.__cause__
        why = f"this is no JSON: {cause}: {show(line.strip())}" if cause is not None else str(error)
        raise BadLine(f"{source.shown}:{number}: {why}") from error
    return value


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
