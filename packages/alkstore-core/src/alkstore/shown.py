"""What people are shown of instants, durations and stored text: the command line and the dashboard say it alike."""

import datetime as dt
import json

from alkstore.errors import CodecError
from alkstore.values import Job, Schedule, StreamEvent

__all__ = ["ago", "gist", "lines", "many", "payload_text", "plain", "pretty", "seconds"]


def plain(text: str, most: int | None = None) -> str:
    """Give one line that any terminal can show: what would move its cursor or change its colours is escaped."""
    cut = text if most is None or len(text) <= most else text[: most - 1] + "…"
    return "".join(mark if mark.isprintable() else _escaped(mark) for mark in cut)


def lines(text: str) -> str:
    """Give a text of several lines, each as `plain` has it."""
    return "\n".join(map(plain, text.splitlines()))


def many(count: int, one: str) -> str:
    """Count things: ``1 job``, ``3,210 jobs``. ``one`` is their name, as it is for a single one."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def _escaped(mark: str) -> str:
    return mark.encode("unicode_escape").decode()


def seconds(instant: dt.datetime) -> str:
    """Show an instant to the second."""
    return f"{instant:%Y-%m-%d %H:%M:%S}Z"


def ago(span: dt.timedelta | None) -> str | None:
    """Show a duration in its two greatest units."""
    if span is None:
        return None
    total = int(span.total_seconds())
    for unit, size, below, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if abs(total) >= size:
            whole, rest = divmod(abs(total), size)
            return f"{'-' if total < 0 else ''}{whole} {unit} {rest // part} {below}"
    return f"{span.total_seconds():.1f} s"


def payload_text(carrier: Job | StreamEvent | Schedule, most: int | None = None) -> str:
    """Give the payload as it is stored, of its bytes the first ``most``."""
    return carrier.payload_bytes[:most].decode("utf-8", "backslashreplace")


def pretty(carrier: Job | StreamEvent | Schedule) -> str:
    """Lay a payload out for reading; what is no JSON is given as it is stored."""
    try:
        return json.dumps(carrier.payload, ensure_ascii=False, indent=2)
    except CodecError:
        return payload_text(carrier)


def gist(error: str | None) -> str | None:
    """Give the line of an error that says what happened: its first, or of a traceback as Python prints it its last."""
    lines = (error or "").strip().splitlines() or [""]
    return None if error is None else lines[-1 if lines[0].startswith("Traceback") else 0]
