"""Beginning a transaction, and ending it however its block ends."""

import sys
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from alkstore.errors import InvalidArgument
from alkstore.transaction import Tx

if TYPE_CHECKING:
    from alkstore.store import Store

__all__ = ["TxContext", "where_called"]

TxT = TypeVar("TxT", bound=Tx, covariant=True)


def where_called(depth: int) -> str:
    """Name the caller's file and line, for messages about a transaction that somebody forgot."""
    frame = sys._getframe(depth + 1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class TxContext(Generic[TxT]):
    """``async with … as tx`` begins and ends; ``tx = await …`` begins, and ending is the caller's.

    ``kind`` is an engine's own subclass of `Tx` where it can say of what type the connection is.
    """

    __slots__ = ("_begun", "_connection", "_is_used", "_kind", "_store", "_tx")

    def __init__(self, store: "Store", begun: str, kind: type[TxT], connection: object | None = None) -> None:
        self._store = store
        self._kind = kind
        self._begun = begun
        self._connection = connection
        self._is_used = False
        self._tx: TxT | None = None

    def __await__(self) -> Generator[object, None, TxT]:
        return self._begin().__await__()

    async def _begin(self) -> TxT:
        # Before anything is awaited: entered by two tasks, the first block would commit what the second one began.
        if self._is_used:
            raise InvalidArgument("a transaction context is entered or awaited once; call begin_tx again")
        joined = self._connection is not None
        self._store._check("Store.join" if joined else "Store.begin_tx", None, write=True)
        self._is_used = True

        engine = self._store._engine
        begin = engine.begin(self._connection, self._begun)
        # A joined connection is the caller's: in a task that outlives him it would be used beside him.
        is_whole = engine.traits.begins_whole or joined
        begun = await self._store._obtain(begin, lambda begun: begun.abandon(), is_whole=is_whole)
        return self._kind(self._store, begun, self._begun, joined=joined)

    async def __aenter__(self) -> TxT:
        self._tx = await self._begin()
        return self._tx

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tx = self._tx
        if tx is not None:
            await tx.__aexit__(exc_type, exc, traceback)
