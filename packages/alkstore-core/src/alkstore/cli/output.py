"""What commands print: tables for people, JSON Lines for programs; and nothing that a terminal would obey."""

import datetime as dt
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from alkstore.errors import CodecError
from alkstore.shown import ago, many, payload_text, plain, seconds
from alkstore.values import Job, StreamEvent

__all__ = [
    "Column",
    "ago",
    "console",
    "discard_output",
    "emit",
    "job_record",
    "many",
    "payload_text",
    "payload_values",
    "plain",
    "print_table",
    "seconds",
    "table",
]

WIDE: Final = 1_000
"""Columns of what is no terminal: a pipe cuts no line."""

SHOWN: Final = 60
"""Characters of a text in a cell of a table."""

Column = tuple[str, str]
"""A heading, and "left" or "right"."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end with exit code 1; the command's own end is for all outputs alike


def console(*, stderr: bool = False) -> Console:
    """Give a console with colours on a terminal alone, without them where NO_COLOR is set."""
    made = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = WIDE
    return made


def emit(record: Mapping[str, object]) -> None:
    """Print one object as a line of JSON, at once."""
    line = json.dumps(record, ensure_ascii=False, default=_value) + "\n"
    # Bytes, for JSON is UTF-8 whatever the terminal's encoding is.
    stream = sys.stdout.buffer
    stream.write(line.encode("utf-8", "backslashreplace"))
    stream.flush()


def _value(value: object) -> object:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    raise TypeError(f"a record holds {type(value).__name__}")


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Table:
    """Make a table without lines; None is a dash."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading, side in columns:
        # A number that is cut is another number.
        made.add_column(heading, justify="right" if side == "right" else "left", no_wrap=side == "right")
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on standard output."""
    out = console()
    out.print(table(columns, rows), soft_wrap=not out.is_terminal)


def _cell(value: object) -> Text:
    if value is None:
        return Text("–")
    if isinstance(value, bool) or not isinstance(value, (int, dt.datetime)):
        return Text(plain(str(value), SHOWN))
    return Text(f"{value:,}" if isinstance(value, int) else seconds(value))


# ---------------------------------------------------------------- jobs and events


def payload_values(carrier: Job | StreamEvent) -> dict[str, object]:
    """Give the payload for a record; stored bytes that are no JSON come as a text beside it."""
    try:
        return {"payload": carrier.payload}
    except CodecError:
        return {"payload": None, "payload_text": carrier.payload_bytes.decode("utf-8", "backslashreplace")}


def job_record(job: Job) -> dict[str, object]:
    """Give everything of a job, by names that stay."""
    return {
        "id": job.id,
        "queue": job.queue,
        "state": job.state.value,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "priority": job.priority,
        "created_at": job.created_at,
        "run_at": job.run_at,
        "expires_at": job.expires_at,
        "scheduled_for": job.scheduled_for,
        "worker_id": job.worker_id,
        "deadline": job.deadline,
        "visibility_timeout": job.visibility_timeout,
        "base_delay": job.base_delay,
        "retry_error": job.retry_error,
        "last_error": job.last_error,
        "died_at": job.died_at,
        "headers": dict(job.headers),
        **payload_values(job),
    }


def discard_output() -> None:
    """Let what is still to be flushed go nowhere: its reader is gone, and the interpreter flushes at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, io.UnsupportedOperation):
        return
