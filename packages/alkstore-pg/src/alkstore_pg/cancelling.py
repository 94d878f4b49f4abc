"""Requests to cancel a statement, which go to the server over a connection of their own and should arrive there.

asyncpg breaks them off with the connection that they are for. What the server does would then go on when nobody waits for it
any more; and PgBouncer 1.18 and 1.19.0, which many distributions have, end themselves with every connection of everybody when
a request goes away before its answer (their issue 801).
"""

import asyncio
from typing import Any, Final

__all__ = ["see_through", "settled"]

PATIENCE: Final = 0.3
"""Seconds that a request has to be answered once its connection has ended: with what a connection has to end, less than core
gives a close that has had its time. A server on the same network takes a millisecond."""

_under_way: Final[set["asyncio.Task[Any]"]] = set()


def see_through(requests: set["asyncio.Task[Any]"]) -> None:
    """Let the driver's requests go on to their end; the set is empty then, so that the driver cancels none of them."""
    for left in [request for request in list(_under_way) if request.get_loop().is_closed()]:
        _under_way.discard(left)
    while requests:
        request = requests.pop()
        if not request.done():
            _limit(request)


def _limit(request: "asyncio.Task[Any]") -> None:
    limit = request.get_loop().call_later(PATIENCE, request.cancel)  # the driver ends it without a word

    def forget(_: object) -> None:
        limit.cancel()
        _under_way.discard(request)

    _under_way.add(request)
    request.add_done_callback(forget)


async def settled() -> None:
    """Wait until those of the running loop have arrived, or their time is over."""
    loop = asyncio.get_running_loop()
    # A list of it at once: the stores of other threads add and remove theirs meanwhile.
    if ours := [request for request in list(_under_way) if request.get_loop() is loop]:
        await asyncio.wait(ours)
