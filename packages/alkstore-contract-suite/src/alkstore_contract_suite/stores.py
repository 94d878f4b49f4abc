"""What the ready factories have in common: the stores that they made, and what their columns do not say."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from alkstore import Store
from alkstore.testing import ManualClock
from alkstore_contract_suite.factory import Business, StoreFactory

__all__ = ["MadeStores"]


class MadeStores(ABC):
    """Opens stores and knows those that there are.

    Attributes:
        clock: What every store of this process reads.
    """

    clock: ManualClock

    def __init__(self) -> None:
        # Weak, or a store that a row dropped would never be collected.
        self._stores: weakref.WeakSet[Store] = weakref.WeakSet()

    @abstractmethod
    def make_store(self, **options: Any) -> Store:
        """Make an unopened store, with options that every engine has."""

    async def open(self, instance: str = "a") -> Store:
        return await self.open_with()

    async def open_with(self, **options: Any) -> Store:
        store = await self.make_store(**options)
        self._stores.add(store)
        return store

    async def reopen(self, store: Store) -> Store:
        await store.aclose()
        return await self.open()

    async def now(self) -> datetime:
        return self.clock.datetime

    # ---------------------------------------------------------------- what not every engine has

    def business(self) -> Business | None:
        return None

    async def foreign_schema(self, newer: bool) -> None:
        raise RuntimeError(
            "the column does not say how another schema version looks; rows of it need 'migrations'"
        )

    async def dump_restore(self) -> StoreFactory | None:
        return None

    def outside(self, channel: str) -> AsyncIterator[bytes] | None:
        return None
