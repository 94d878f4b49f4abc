"""A recorded call, and how it is noted so that a kill between its begin and its end loses nothing."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

__all__ = ["UNKNOWN", "Call", "Note", "Noted", "calls", "noted"]

T = TypeVar("T")

Noted: TypeAlias = tuple[Any, ...]
Note: TypeAlias = Callable[[Noted], object]
"""Takes what is noted: the list of a task, or `child.tell`, which outlives the process."""

UNKNOWN: Final = "unknown"
"""The answer of a call that nobody heard the end of: it may have had its effect, or not, or have it later."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Attributes:
        process: Who made it; one makes one call at a time.
        do: The verb.
        given: What it was given.
        answer: What came of it, or `UNKNOWN`.
        begun: Before it, on a clock that all processes of the machine share, in nanoseconds.
        ended: After it; infinite if it is unknown.
    """

    process: str
    do: str
    given: Any
    answer: Any
    begun: float
    ended: float = float("inf")

    @property
    def is_known(self) -> bool:
        """Whether its end was heard."""
        return self.ended != float("inf")


async def noted(
    note: Note, do: str, given: Any, call: Awaitable[T], of: Callable[[T], Any] = lambda answer: answer
) -> T:
    """Make a call between two notes; ``of`` makes of its answer what is noted, in plain values."""
    note(("begins", do, given, time.monotonic_ns()))
    answer = await call
    note(("ends", of(answer), time.monotonic_ns()))
    return answer


def calls(process: str, notes: Sequence[Noted]) -> list[Call]:
    """Give the calls of one process, in their order."""
    found: list[Call] = []
    for word, *rest in notes:
        if word == "begins":
            do, given, begun = rest
            found.append(Call(process, do, given, UNKNOWN, begun))
        else:
            answer, ended = rest
            last = found.pop()
            found.append(Call(process, last.do, last.given, answer, last.begun, ended))
    return found
