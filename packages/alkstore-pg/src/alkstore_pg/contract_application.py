"""The application beside alkstore in one database: a table of its own, and a program of its own that listens."""

import asyncio
import re
from collections import deque
from typing import Final, Self, cast

import psycopg

from alkstore import Tx
from alkstore_pg.contract_outsider import Outsider, connect, quoted
from alkstore_pg.link import Connection

__all__ = ["INSERT", "SELECT", "Outside", "Table"]

INSERT: Final = (
    "INSERT INTO public.business (key, value) VALUES ($1, $2) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)
SELECT: Final = "SELECT value FROM public.business WHERE key = $1"

LOOK_AGAIN: Final = 0.001
"""Seconds of real time between two looks at what a connection has heard."""


class Table:
    """A table of the application."""

    def __init__(self, outsider: Outsider) -> None:
        self._outsider = outsider

    async def write(self, tx: Tx, key: str, value: str) -> None:
        await cast(Connection, tx.connection).execute(INSERT, key, value)

    async def read(self, key: str) -> str | None:
        rows = self._outsider.run(SELECT, key)
        return None if not rows else str(rows[0][0])

    async def end(self, tx: Tx, *, commit: bool) -> None:
        await cast(Connection, tx.connection).execute("COMMIT" if commit else "ROLLBACK")


class Outside:
    """A program in any language that listens on the schema's channel, for one of alkstore's channels."""

    def __init__(self, dsn: str, schema: str, channel: str) -> None:
        self._channel = channel
        self._heard: deque[bytes] = deque()
        self._connection: psycopg.Connection[tuple[object, ...]] | None = connect(dsn)
        self._connection.add_notify_handler(self._take)
        self._connection.execute(f"LISTEN {quoted(schema)}".encode())

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _take(self, note: psycopg.Notify) -> None:
        head = re.match(r"n(\d+):", note.payload)
        if head is None:
            return
        end = head.end() + int(head[1])
        if note.payload[head.end() : end] == self._channel:
            self._heard.append(note.payload[end:].encode())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._heard:
            if self._connection is None:
                raise StopAsyncIteration
            self._connection.execute("SELECT 1")  # what has come is handed over with the next answer
            if not self._heard:
                await asyncio.sleep(LOOK_AGAIN)
        return self._heard.popleft()
