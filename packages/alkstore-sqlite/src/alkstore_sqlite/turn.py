"""A transaction's turn in the writer's line."""

import asyncio
import time
from typing import Protocol

__all__ = ["Owner", "Turn"]


class Owner(Protocol):
    """A transaction that has the writer for itself, as far as a message must name it."""

    @property
    def label(self) -> str: ...


class Turn:
    """A transaction's place in the line."""

    __slots__ = ("done", "error", "owner", "since")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.since = time.monotonic()
        self.error: Exception | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
