"""A connection that is lost while its store asks the server to stop: of it the driver answers that all went well."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hanging import HUNG

from alkstore import Lock, Store, Tx
from alkstore.errors import DatabaseError
from alkstore_pg import PgStore
from alkstore_pg.contract_proxy import Link, Proxy
from alkstore_pg.contract_server import execute

Operation = Callable[[Store, Lock, Tx], Awaitable[object]]

OPERATIONS: dict[str, Operation] = {
    "enqueue": lambda store, _lock, _tx: store.queue("q").enqueue(1),
    "notify": lambda store, _lock, _tx: store.notify("c"),
    "try_lock": lambda store, _lock, _tx: store.try_lock("y", 5),
    "renew": lambda _store, lock, _tx: lock.renew(5),
    "commit": lambda _store, _lock, tx: tx.commit(),
}


def cancels(link: Link) -> bool:
    return link.has_sent(b"\x00\x00\x00\x10\x04\xd2\x16\x2e")


async def cut_short(proxy: Proxy, store: Any, operation: Awaitable[object]) -> object:
    """Lose every connection between the close's request to cancel what it has in hand and the answer to that."""
    before = {link: len(link.seen) for link in proxy.links}
    proxy.swallow(only=lambda link: link in before or cancels(link))
    doing = asyncio.ensure_future(operation)
    async with asyncio.timeout(HUNG):
        await until(lambda: any(len(link.seen) > size for link, size in before.items()))
        closing = asyncio.ensure_future(store._engine.aclose())
        await until(lambda: any(map(cancels, proxy.links)))
        for link in before:
            if link.client.transport is not None:
                link.client.transport.close()
        (found, _) = await asyncio.gather(doing, closing, return_exceptions=True)
    return found


async def until(look: Callable[[], bool]) -> None:
    while not look():  # noqa: ASYNC110  # the proxy tells nobody
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_write_without_an_answer_is_acknowledged_by_nobody(dsn: str, name: str) -> None:
    async with Proxy(dsn) as proxy:
        store: Any = await PgStore(proxy.dsn())
        # Made and prepared: what is cut short then is the statement itself.
        await store.queue("warm").enqueue(0)
        await store.notify("c")
        lock, other = await asyncio.gather(store.try_lock("x", 100), store.try_lock("z", 100))
        await asyncio.gather(lock.renew(100), other.renew(100))
        tx = await store.begin_tx()
        await tx.enqueue("q", 1)

        found = await cut_short(proxy, store, OPERATIONS[name](store, lock, tx))

        assert isinstance(found, DatabaseError)
        assert found.outcome_unknown
        assert "connection was ended before its answer" in str(found)
        await store.aclose()
    assert execute(dsn, "SELECT FROM alkstore.job WHERE queue = 'q'") == []


@pytest.mark.parametrize("method", ["execute", "executemany", "fetch", "fetchrow", "fetchval"])
@pytest.mark.parametrize("has_parameters", [False, True])
async def test_a_callers_own_statement_without_an_answer_raises_the_drivers_error(
    dsn: str, method: str, has_parameters: bool
) -> None:
    many = method == "executemany"
    parameters = [[(1,)]] if many else [1] if has_parameters else []
    sql = "SELECT $1::int" if parameters else "SELECT 1"
    async with Proxy(dsn) as proxy:
        store: Any = await PgStore(proxy.dsn())
        tx = await store.begin_tx()

        found = await cut_short(proxy, store, getattr(tx.connection, method)(sql, *parameters))

        assert type(found).__name__ == "ConnectionDoesNotExistError"
        await store.aclose()
