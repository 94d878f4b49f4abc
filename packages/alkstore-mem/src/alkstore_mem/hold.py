"""Who holds a consumer's position, who waits for it, and how a circle of waits is broken."""

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from alkstore.errors import Closed, DatabaseError, show

__all__ = ["Holds", "Position"]


class Position(NamedTuple):
    """What is held: one consumer's position in one stream."""

    stream: str
    consumer: str


class Holder(Protocol):
    """A transaction, as far as a message must name it."""

    @property
    def label(self) -> str: ...


class Holds:
    """Positions held by open transactions; others wait in the order in which they asked."""

    def __init__(self, wait_timeout: float) -> None:
        self._wait_timeout = wait_timeout
        self._holders: dict[Position, Holder] = {}
        self._held: dict[Holder, list[Position]] = {}
        self._waiters: dict[Position, deque[tuple[Holder, asyncio.Future[bool]]]] = {}
        self._wanted: dict[Holder, Position] = {}

    async def take(self, position: Position, holder: Holder) -> None:
        """Hold a position until `release`.

        Raises:
            DatabaseError: Another transaction held it for too long, or waits for this very one.
            Closed: The transaction ended meanwhile.
        """
        owner = self._holders.get(position)
        if owner is None:
            self._give(position, holder)
            return
        if owner is holder:
            return
        if self._would_close_a_circle(owner, holder):
            raise DatabaseError(
                f"{_named(position)} is held by {owner.label}, which waits for this one; "
                "this one was rolled back, begin it again"
            )
        await self._wait(position, holder)

    def release(self, holder: Holder) -> None:
        """Free all that a transaction holds, hand each on to who waited longest, and end its own wait."""
        wanted = self._wanted.get(holder)
        if wanted is not None:
            for waiter, future in self._waiters[wanted]:
                if waiter is holder and not future.done():
                    future.set_result(False)
        for position in self._held.pop(holder, ()):
            del self._holders[position]
            self._hand_on(position)

    def _give(self, position: Position, holder: Holder) -> None:
        self._holders[position] = holder
        self._held.setdefault(holder, []).append(position)

    def _hand_on(self, position: Position) -> None:
        for waiter, future in self._waiters.get(position, ()):
            if not future.done():
                self._give(position, waiter)
                del self._wanted[waiter]  # it waits for nothing any more, even before its task runs again
                future.set_result(True)
                return

    def _would_close_a_circle(self, owner: Holder, asking: Holder) -> bool:
        while (wanted := self._wanted.get(owner)) is not None:
            next_owner = self._holders.get(wanted)
            if next_owner is None:
                return False
            if next_owner is asking:
                return True
            owner = next_owner
        return False

    async def _wait(self, position: Position, holder: Holder) -> None:
        place = (holder, asyncio.get_running_loop().create_future())
        waiters = self._waiters.setdefault(position, deque())
        waiters.append(place)
        self._wanted[holder] = position
        try:
            async with asyncio.timeout(self._wait_timeout):
                granted = await place[1]
        except TimeoutError:
            owner = self._holders.get(position, holder)
            raise DatabaseError(
                f"{_named(position)} was held by {owner.label} for over {self._wait_timeout:g} s; "
                "end that one sooner, or raise wait_timeout"
            ) from None
        finally:
            waiters.remove(place)
            if not waiters:
                self._waiters.pop(position, None)
            self._wanted.pop(holder, None)
        if not granted:
            raise Closed("transaction")


def _named(position: Position) -> str:
    return f"position of consumer {show(position.consumer)} in stream {show(position.stream)}"
