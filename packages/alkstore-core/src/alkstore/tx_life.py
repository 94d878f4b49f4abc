"""The life of a transaction: who may be inside, and how it ends, whoever ends it."""

import asyncio
import logging
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from alkstore.engine import EngineTransaction
from alkstore.errors import (
    AlkstoreError,
    Closed,
    DatabaseError,
    InvalidArgument,
)
from alkstore.job import ACKED_IN_TX, JobHandle

if TYPE_CHECKING:
    from alkstore.store import Store

__all__ = ["TxLife"]

LOGGER: Final = logging.getLogger("alkstore")


class _Use:
    """A task inside a transaction. A class, since a generator's context manager costs four times as much."""

    __slots__ = ("_life",)

    def __init__(self, life: "TxLife") -> None:
        self._life = life

    def __enter__(self) -> None:
        life = self._life
        life._check_open()
        if life._is_busy:
            raise InvalidArgument(
                "transaction is in use by another task; one task at a time may be inside it"
            )
        life._is_busy = True
        life._task = asyncio.current_task()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        life = self._life
        life._is_busy = False
        is_open = life._tx.is_open
        if isinstance(exc, DatabaseError):
            # Ended by the engine, not by the block: a block that goes on over this error is told at its end.
            life._is_cut_off = not life._is_landing and not is_open
        if not is_open and not life._is_ended:
            life._end(reopen=True, is_unsure=not isinstance(exc, DatabaseError))


class TxLife:
    """From the beginning of a transaction to its commit, its rollback, its store's close or its being forgotten."""

    __slots__ = (
        "__weakref__", "_acked", "_begun", "_doubted", "_is_busy", "_is_cut_off", "_is_ended", "_is_joined",
        "_is_landing", "_is_lent", "_positions", "_store", "_task", "_tx"
    )  # fmt: skip

    def __init__(self, store: "Store", tx: EngineTransaction, begun: str, *, joined: bool) -> None:
        self._store = store
        self._tx = tx
        self._begun = begun
        self._is_joined = joined
        self._is_ended = False
        self._is_busy = False
        self._is_cut_off = False
        self._is_landing = False
        self._is_lent = False
        self._task = asyncio.current_task()
        self._acked: list[JobHandle] = []
        self._doubted: set[JobHandle] = set()
        """Those among them whose ack was cut short: it may have been done or not, and may be repeated."""
        self._positions: dict[tuple[str, str], int] = {}
        store._tx_begun(self)

    @property
    def connection(self) -> object:
        """The driver's connection, for the caller's own SQL in this transaction.

        Raises:
            InvalidArgument: The engine has none.
            Closed: The transaction has ended.
        """
        self._check_open()
        connection = self._tx.connection
        self._is_lent = True
        return connection

    async def commit(self) -> None:
        """Land all of it.

        Raises:
            InvalidArgument: The transaction is the caller's (`Store.join`).
            Closed: It has ended.
            DatabaseError: It did not land, or its outcome is unknown (DUR-11).
        """
        self._check_own("commit")
        with self._using():
            self._is_landing = True
            try:
                with self._store._inside:  # the store's close lets a commit finish that was handed over
                    await self._tx.commit()
            except BaseException:
                if self._tx.is_open:  # a commit cut short must not leave it open in the storage
                    await self._roll_back()
                self._end(reopen=True)
                raise
            self._end(reopen=False)

    async def rollback(self) -> None:
        """Leave no trace.

        Raises:
            InvalidArgument: The transaction is the caller's (`Store.join`).
            Closed: It has ended.
        """
        self._check_own("rollback")
        with self._using():
            try:
                # Cut short it would stay open in the storage, with all that it holds.
                await self._store._shielded(self._undo())
            finally:
                self._end(reopen=True)

    # ------------------------------------------------------------ within core

    @property
    def _is_open(self) -> bool:
        return not self._is_ended and self._tx.is_open

    def _check_open(self) -> None:
        self._store._check("Tx", write=False)
        if not self._is_open:
            raise Closed("transaction")

    def _check_own(self, operation: str) -> None:
        if self._is_joined:
            raise InvalidArgument(
                f"{operation} of a joined transaction is its owner's; call it on your connection"
            )

    def _using(self) -> "_Use":
        """Let the calling task in, one at a time."""
        return _Use(self)

    def _end(self, *, reopen: bool, is_unsure: bool = False) -> None:
        """Be over; ``reopen`` what was acked, and if it is unsure whether that landed let each claim decide."""
        if self._is_ended:
            return
        self._is_ended = True
        self._store._tx_ended(self)
        if not self._is_joined:
            self._tx.abandon()  # the caller's own SQL may have ended it, past the engine, which holds what it held
        # A savepoint of the caller's own may have taken an ack back, and the commit tells nothing of that.
        is_unsure = is_unsure if reopen else self._is_lent
        acked, self._acked = self._acked, []
        for handle in acked:
            if is_unsure:
                handle._rides = self._tx
            elif reopen and handle._consumed is ACKED_IN_TX:  # and not settled by somebody meanwhile
                handle._consumed = handle._rides = None

    async def _undo(self) -> None:
        try:
            await self._tx.rollback()
        finally:
            if self._tx.is_open:  # who cannot be told to roll back is to let go of it all the same
                self._tx.abandon()

    async def _roll_back_early(self) -> None:
        """Roll back for the store's close, unless it is the caller's, or its commit is under way."""
        if not self._is_joined and not self._is_landing:
            is_unsure = not self._tx.is_open
            await self._undo()
            self._abandon(is_unsure=is_unsure)

    def _cut_off(self) -> None:
        """Let go of it for the store's close; a commit under way is the engine's to end."""
        if not self._is_landing:
            self._abandon(is_unsure=not self._tx.is_open)

    def _abandon(self, *, is_unsure: bool) -> None:
        """End it from a finaliser or from the store's close: nothing lands, but what is the caller's to end.

        ``is_unsure`` says that his own SQL had ended it before.
        """
        if not self._is_ended:
            # A joined one is let go of like this by whoever was given the connection and is done: it stays open.
            self._end(reopen=not self._is_joined, is_unsure=is_unsure)
            self._is_cut_off = True

    def __del__(self) -> None:
        if not getattr(self, "_is_ended", True):
            if self._tx.is_open and not self._is_joined:
                warnings.warn(
                    f"transaction begun at {self._begun} was never ended",
                    ResourceWarning,
                    stacklevel=2,
                    source=self,
                )
            self._abandon(is_unsure=not self._tx.is_open)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_joined:
            self._end(reopen=False)
            return
        if not self._is_open:
            self._end(reopen=True, is_unsure=True)  # by the caller's own SQL
            if exc is None and self._is_cut_off:  # or the block would believe that it has committed
                raise Closed("transaction")
            return
        try:
            if exc is None:
                await self.commit()
        finally:
            # A commit is refused while another task is inside: the block is over all the same, and holds nothing back.
            if self._is_open:
                await self._roll_back()

    async def _roll_back(self) -> None:
        try:
            # A second cancellation must not leave it open, and a failing rollback must not hide the first error.
            await self._store._shielded(self._undo())
        except AlkstoreError as error:
            LOGGER.warning("rollback of the transaction begun at %s failed: %s", self._begun, error)
        finally:
            self._end(reopen=True)
