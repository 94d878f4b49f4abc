"""What an engine with ``joins`` offers beside its factory: the application's own connections."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, cast

from alkstore_contract_suite.context import Context

__all__ = [
    "Application",
    "ApplicationTransaction",
    "StrictApplication",
    "applications",
    "strict_applications",
]


class ApplicationTransaction(Protocol):
    """A transaction that the application began with its own library."""

    @property
    def connection(self) -> object:
        """What ``store.join`` takes."""

    async def write(self, key: str, value: str) -> None:
        """Write business data within it."""

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    def savepoint(self) -> AbstractAsyncContextManager[object]:
        """A savepoint for the length of a block: an exception that leaves the block rolls back to it."""


class Application(Protocol):
    """One library by which an application may hold a connection."""

    @property
    def label(self) -> str: ...

    def transaction(self) -> AbstractAsyncContextManager[ApplicationTransaction]:
        """Begin a transaction on the storage of this case; rolled back on leaving unless it was committed."""

    def idle(self) -> AbstractAsyncContextManager[object]:
        """Give a connection that is in no transaction, and will not begin one by itself."""

    def foreign(self) -> AbstractAsyncContextManager[object]:
        """Give something that cannot be joined: another storage's connection, or none at all."""

    async def read(self, key: str) -> str | None:
        """Read the business data that is committed."""


class StrictApplication(Application, Protocol):
    """An application whose server has isolation levels: what a column with ``server`` adds to `Application`."""

    def strict(self) -> AbstractAsyncContextManager[ApplicationTransaction]:
        """Begin a transaction that sees nothing of what is committed after its first statement."""


class Joining(Protocol):
    """A factory that has applications: what a column with the capability ``joins`` adds to `StoreFactory`."""

    def applications(self) -> Sequence[Application]: ...


def applications(ctx: Context) -> Sequence[Application]:
    """Give every library that the engine can join."""
    if not hasattr(ctx.factory, "applications"):
        ctx.skip_inconclusive("the factory of an engine with 'joins' must have applications()")
    return cast(Joining, ctx.factory).applications()


def strict_applications(ctx: Context) -> Sequence[StrictApplication]:
    """Give the same, each able to begin at a stricter isolation level."""
    found = applications(ctx)
    if not all(hasattr(application, "strict") for application in found):
        ctx.skip_inconclusive("the applications of an engine with 'server' must have strict()")
    return cast(Sequence[StrictApplication], found)
