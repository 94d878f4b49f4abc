"""Awaitable context managers: ``async with X as x``, or ``x = await X`` and the duty to close it."""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Generic, TypeVar

from alkstore.errors import InvalidArgument

__all__ = ["AwaitableContext"]

T = TypeVar("T")


class AwaitableContext(Generic[T]):
    """What ``listen`` and ``subscribe`` return: opens once, entered or awaited, and closes on leaving the block."""

    __slots__ = ("_close", "_is_used", "_open", "_opened")

    def __init__(self, open: Callable[[], Awaitable[T]], close: Callable[[T], Awaitable[None]]) -> None:
        self._open = open
        self._close = close
        self._is_used = False
        self._opened: list[T] = []

    def __await__(self) -> Generator[object, None, T]:
        return self._enter().__await__()

    async def __aenter__(self) -> T:
        opened = await self._enter()
        self._opened.append(opened)
        return opened

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close(self._opened.pop())

    async def _enter(self) -> T:
        # Entered twice, the first object would be closed by the second block, or never.
        if self._is_used:
            raise InvalidArgument("this was entered or awaited before; call the operation again for another")
        self._is_used = True
        return await self._open()
