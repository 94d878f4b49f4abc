"""What lets the storage fail under processes that work on it: a proxy on their way to the server, and the server's end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from alkstore_pg import contract_faults as faults
from alkstore_pg.contract_proxy import Proxy

if TYPE_CHECKING:
    from alkstore_pg.contract_factory import Place

__all__ = ["Disturbances", "disturbed"]

Disturbances: TypeAlias = Mapping[str, Callable[[], Awaitable[None]]]

LISTENER: Final = "listener_dsn"


@asynccontextmanager
async def disturbed(where: faults.Broken) -> "AsyncIterator[tuple[Place, Disturbances]]":
    """Give a place that leads through proxies, and what can happen on the way there."""
    place = where.place
    async with AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(Proxy(place.dsn))]
        through = replace(place, dsn=_plain(ways[0].dsn()))
        if LISTENER in place.options:
            ways.append(await stack.enter_async_context(Proxy(place.options[LISTENER])))
            options = {**place.options, LISTENER: _plain(ways[1].dsn())}
            through = replace(through, options=options)

        async def cut() -> None:
            for way in ways:
                way.cut()

        async def restart() -> None:
            where.outsider.close()
            assert where.server is not None
            await asyncio.to_thread(where.server.restart, "immediate")
            where.outsider.set_clock()
            if place.is_pooled:
                await asyncio.to_thread(faults.be_let_in, place.dsn)

        happens: dict[str, Callable[[], Awaitable[None]]] = {"network cut": cut}
        if faults.is_ours(where):
            happens["server restart"] = restart
        yield through, happens


def _plain(dsn: str) -> str:
    # Negotiated away, TLS would cost each connection a round trip; and a cut in it shows in the log of the loop.
    return f"{dsn}{'&' if '?' in dsn else '?'}sslmode=disable"
