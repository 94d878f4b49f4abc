"""Operations: how a call of the seam goes to the script, and how its answer comes back. Both are JSON without numbers."""

from collections.abc import Callable
from typing import Any, Final

from alkstore import records
from alkstore.document import reader

__all__ = ["Operations", "number", "operation", "text"]

BIAS: Final = 922_337_204 * 10**10


def text(number: int) -> str:
    """Give a number of 64 bits as the script compares and adds it: 20 digits that sort."""
    return f"{number + BIAS:020d}"


def number(text: str | int) -> int:
    """Read what `text` gave, or how many things Lua counted."""
    return text if isinstance(text, int) else int(text) - BIAS


def operation(name: str, gives: Any, then: Callable[[Any], Any] = lambda given: given) -> Any:
    """Make the method that runs an operation of the script with its arguments, and gives what the type says."""

    async def method(self: Any, *arguments: object, **named: object) -> Any:
        return then(reader(gives, number)(await self._run(name, *arguments, *named.values())))

    return method


class Operations:
    """What is done on a store and in a transaction alike; each of them has a `_run`."""

    insert_jobs = operation("insert_jobs", list[int])
    find_jobs = operation("find_jobs", list[records.JobRecord])
    settle_jobs = operation("settle_jobs", list[int | None])
    append_events = operation("append_events", list[int])
    read_events = operation("read_events", list[records.EventRecord])
    notify = operation("notify", bool)
