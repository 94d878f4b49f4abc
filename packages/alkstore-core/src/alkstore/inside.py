"""Who is inside a store's storage and must be let finish by its close: a commit, a runner with a lease to give up."""

import asyncio
from types import TracebackType

__all__ = ["Inside"]


class Inside:
    """``with inside:`` counts who is; a number, since a future for each of them would cost more than what it is for."""

    __slots__ = ("_count", "_left")

    def __init__(self) -> None:
        self._count = 0
        self._left: asyncio.Future[None] | None = None

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._count -= 1
        left = self._left
        if left is not None and not self._count:
            self._left = None
            if not left.done():
                left.set_result(None)

    def left(self) -> set[asyncio.Future[None]]:
        """Give what is done once nobody is inside any more; nothing if nobody is."""
        if not self._count:
            return set()
        if self._left is None or self._left.done():
            self._left = asyncio.get_running_loop().create_future()
        return {self._left}
