"""Waiting for what blocks, while a signal may ask for the end."""

import asyncio
from typing import TypeVar

from alkstore.stop import StopToken

__all__ = ["unless_stopped"]

T = TypeVar("T")


async def unless_stopped(future: "asyncio.Future[T]", stop: StopToken) -> T | None:
    """Wait for it; None if the stop comes first."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((future, stopped), return_when=asyncio.FIRST_COMPLETED)
        return future.result() if future.done() else None
    finally:
        stopped.cancel()
        if not future.done():
            future.cancel()
