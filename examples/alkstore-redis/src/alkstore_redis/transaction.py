"""Transactions: a name that operations carry. What one wrote is on the server, kept apart until its commit lands it."""

import secrets
from typing import TYPE_CHECKING, Any

from alkstore.engine import OffsetSave
from alkstore.errors import Closed, DatabaseError, InvalidArgument
from alkstore_redis.operation import Operations, operation

if TYPE_CHECKING:  # the engine begins transactions
    from alkstore_redis.engine import RedisEngine

__all__ = ["RedisTransaction"]


class RedisTransaction(Operations):
    """One open transaction of one store."""

    def __init__(self, engine: "RedisEngine") -> None:
        self._engine = engine
        self._id = f"{engine.id}/{secrets.token_hex(8)}"
        self.is_open = True

    read_offset = operation("read_offset", int)
    save_offset = operation("save_offset", OffsetSave)

    @property
    def connection(self) -> object:
        raise InvalidArgument("redis engine has no connection: what is the transaction's has only its name")

    async def commit(self) -> None:
        await self._run("commit")
        self.is_open = False

    async def rollback(self) -> None:
        if self.is_open:
            self.is_open = False
            await self._engine._run("rollback", tx=self._id)

    def abandon(self) -> None:
        if self.is_open:
            self.is_open = False
            self._engine.calls.leave(self._engine.call, "rollback", (), self._id)

    async def _run(self, name: str, *arguments: object) -> Any:
        if not self.is_open:
            raise Closed("transaction")
        try:
            return await self._engine._run(name, *arguments, tx=self._id)
        except DatabaseError as error:
            if not self.is_open and name != "commit":  # a close took it back, and nothing of it is left
                raise Closed("transaction") from error
            if error._is_held_back:
                # What it holds meanwhile is what others wait for: an error that left it open could repeat for ever.
                self.abandon()
            raise
