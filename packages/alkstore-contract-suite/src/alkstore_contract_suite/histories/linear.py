"""Whether concurrent calls can have happened one at a time: the search of Wing and Gong, with a memo as Lowe gave it.

An object answers each call at one instant between its begin and its end, or it is broken. The search puts the calls in an
order that keeps to these intervals and in which each answer is one that the object, told as a state and its steps, can
give. What was looked at once, a set of calls done and the state they led to, is not looked at again.

Source: J. Wing, C. Gong, "Testing and verifying concurrent objects", 1993; G. Lowe, "Testing for linearizability", 2017.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from alkstore_contract_suite.histories.call import Call

__all__ = ["MOST_CALLS", "MOST_PROCESSES", "NotLinear", "TooLong", "check"]

MOST_PROCESSES: Final = 8
MOST_CALLS: Final = 200
"""Of one key: more than these a search may not come through."""

Steps: TypeAlias = Callable[[Hashable, Call], Iterable[Hashable]]
"""The states in which a call that is done in a state leaves the object, each with the call's answer; none if it cannot be."""


class TooLong(Exception):
    """The search was not through in time: nothing is known."""


@dataclass(frozen=True, slots=True)
class NotLinear:
    """No order explains the answers.

    Attributes:
        done: The longest order that was found.
        stuck: The calls of which one had to come next.
        state: The state in which none could.
    """

    done: Sequence[Call]
    stuck: Sequence[Call]
    state: Hashable


def check(
    history: Sequence[Call], begin: Hashable, steps: Steps, *, seconds: float = 5.0
) -> NotLinear | None:
    """Look for an order of the calls of one key; None if there is one.

    A call whose end nobody heard may be done at any time after its begin, or never.

    Raises:
        TooLong: There was no time to know.
        ValueError: More than 8 processes or 200 calls.
    """
    if len({call.process for call in history}) > MOST_PROCESSES or len(history) > MOST_CALLS:
        raise ValueError(
            f"history must have at most {MOST_PROCESSES} processes and {MOST_CALLS} calls a key, "
            f"got {len({call.process for call in history})} and {len(history)}"
        )
    ordered = sorted(history, key=lambda call: call.begun)
    return _Search(ordered, steps, time.monotonic() + seconds).run(begin)


class _Search:
    def __init__(self, history: Sequence[Call], steps: Steps, end: float) -> None:
        self._calls = history
        self._steps = steps
        self._end = end
        self._all_known = sum(1 << at for at, call in enumerate(history) if call.is_known)
        self._best: tuple[list[int], Hashable] = [], None

    def run(self, begin: Hashable) -> NotLinear | None:
        # A stack of its own: two hundred calls are as many frames. An entry is what was done, in which state, in which order.
        seen: set[tuple[int, Hashable]] = {(0, begin)}
        stack: list[tuple[int, Hashable, list[int]]] = [(0, begin, [])]
        self._best = [], begin
        while stack:
            if time.monotonic() > self._end:
                raise TooLong(
                    f"{len(self._calls)} calls: {len(seen)} states were looked at, and no order was found yet"
                )
            done, state, order = stack.pop()
            if done & self._all_known == self._all_known:
                return None
            if len(order) > len(self._best[0]):
                self._best = order, state
            for at in self._next(done):
                for after in self._steps(state, self._calls[at]):
                    key = done | 1 << at, after
                    if key not in seen:
                        seen.add(key)
                        stack.append((*key, [*order, at]))
        return self._failure()

    def _next(self, done: int) -> list[int]:
        """Give the calls that may be next: those that no other open one ended before."""
        left = [at for at in range(len(self._calls)) if not done >> at & 1]
        first_end = min(self._calls[at].ended for at in left)
        return [at for at in left if self._calls[at].begun <= first_end]

    def _failure(self) -> NotLinear:
        order, state = self._best
        done = sum(1 << at for at in order)
        return NotLinear(
            [self._calls[at] for at in order], [self._calls[at] for at in self._next(done)], state
        )
