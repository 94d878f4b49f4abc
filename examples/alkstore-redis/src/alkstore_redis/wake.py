"""Wakes: one connection a store, on which the server tells of every commit, and by whose end it knows that the store is gone."""

from typing import Any

from redis.asyncio import ConnectionPool

from alkstore.engine import Topic, TopicKind

__all__ = ["RedisLine"]


class RedisLine:
    """`alkstore.listener.Line` on a connection of the driver's."""

    def __init__(self, pool: ConnectionPool, channels: list[str]) -> None:
        self.connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]
        self._channels = channels

    async def open(self) -> None:
        await self.connection.connect()
        await self.connection.send_command("SUBSCRIBE", *self._channels)
        for _ in self._channels:
            await self.connection.read_response()

    async def read(self, seconds: float) -> Topic | str | None:
        match await self.connection.read_response(timeout=seconds, disconnect_on_error=False):
            case [b"message", _, topic]:
                kind, _, name = topic.decode().partition(":")
                return Topic(TopicKind(kind), name)
            case [b"pong", question]:
                return str(question.decode())
        return None

    async def ask(self, question: str) -> None:
        await self.connection.send_command("PING", question)

    async def aclose(self) -> None:
        await self.connection.disconnect(nowait=True)
