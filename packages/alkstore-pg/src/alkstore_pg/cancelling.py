"""Requests to cancel a statement, which go to the server over a connection of their own and must arrive there.

asyncpg breaks them off with the connection that they are for. What the server does would then go on, and land, when nobody
waits for it any more; and PgBouncer 1.18 and 1.19.0, which many distributions have, end themselves with every connection of
everybody when a request goes away before its answer (their issue 801).
"""

import asyncio
from typing import Any, Final

__all__ = ["see_through", "settled"]

PATIENCE: Final = 0.5
"""Seconds that a server has to take note of one."""

_under_way: Final[set["asyncio.Task[Any]"]] = set()


def see_through(requests: set["asyncio.Task[Any]"]) -> None:
    """Let the driver's requests go on to their end; the set is empty then, so that the driver cancels none of them."""
    while requests:
        request = requests.pop()
        _under_way.add(request)
        request.add_done_callback(_under_way.discard)


async def settled() -> None:
    """Wait until those of the running loop have arrived, which takes about a millisecond, or their time is over."""
    loop = asyncio.get_running_loop()
    if ours := [request for request in _under_way if request.get_loop() is loop]:
        await asyncio.wait(ours, timeout=PATIENCE)
