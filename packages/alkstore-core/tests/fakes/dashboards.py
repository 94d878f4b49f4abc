"""A dashboard of a store in memory, and a browser without a network: `httpx` for pages, `Viewer` for what goes on."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from faulty import FaultyStore
from hanging import HUNG

import alkstore
from alkstore import Store, dashboard
from alkstore.dashboard import Dashboard, Witness
from alkstore.testing import ManualClock

__all__ = ["HOSTILE", "TOKEN", "Shown", "Viewer", "client_of", "shown", "watching"]

TOKEN = "a secret of enough letters"
HOSTILE = "<script>alert('x')</script>&\"'\x1b[31m\u202e"
"""What somebody may have stored, and a page must show without obeying it."""


class Shown:
    """A store, its dashboard, and a client that asks for ``http://localhost/``."""

    def __init__(
        self, store: Store, clock: ManualClock, made: Dashboard, client: httpx.AsyncClient, witness: Witness
    ) -> None:
        self.store = store
        self.clock = clock
        self.made = made
        self.client = client
        self.witness = witness

    async def page(self, path: str, status: int = 200) -> str:
        """Give the text of a page."""
        answer = await self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    async def words(self, path: str, status: int = 200) -> str:
        """Give what a page says, without its markup."""
        body = (await self.page(path, status)).split("<body>")[1].split("<script>")[0]
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))

    async def proof(self) -> str:
        """Give what a form must carry."""
        found = re.search(r'name="proof" value="(\w+)"', await self.page("/confirm?name=q&action=redrive"))
        assert found is not None
        return found[1]

    async def post(
        self, path: str, fields: dict[str, Any], headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Send a form as a page of the dashboard does."""
        own = {"origin": str(self.client.base_url).rstrip("/")}
        return await self.client.post(path, data=fields, headers=own if headers is None else headers)

    async def dead(self, queue: str, *errors: str) -> list[int]:
        """Put dead jobs into a queue, one for each error."""
        ids: list[int] = []
        for error in errors:
            ids.append(await self.store.queue(queue).enqueue({"n": len(ids)}, priority=99))
            handle = await self.store.queue(queue).claim_one()
            assert handle is not None
            await handle.fail(error)
        return ids


@asynccontextmanager
async def shown(
    *,
    token: str | None = None,
    write: bool = False,
    interval: float | None = None,
    faulty: FaultyStore | None = None,
    **more: Any,
) -> AsyncIterator[Shown]:
    """Give the dashboard of a new store, or of a faulty one; without an interval it looks anew for every page."""
    witness = Witness()
    clock = ManualClock() if faulty is None else faulty.clock
    made_store = faulty or alkstore.open("mem://", clock=clock, observers=[witness])
    async with made_store as store:
        given = {"witness": witness} | more
        made = dashboard.app(store, token=token, write=write, interval=interval or 1e-9, clock=clock, **given)

        async def forget(
            _: httpx.Request,
        ) -> None:  # on a busy machine a look is fresh for as long as it took, nine times
            made._site.look.forget()

        async with client_of(made) as client:
            client.event_hooks = {"request": [forget] if interval is None else []}
            yield Shown(store, clock, made, client, witness)


def client_of(app: Any, base: str = "http://localhost") -> httpx.AsyncClient:
    """Give a client of an ASGI application."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=base)


class Viewer:
    """One who has a page open, live."""

    def __init__(self, made: Dashboard, path: str, cookie: str) -> None:
        path, _, query = path.partition("?")
        self._made = made
        headers = [(b"host", b"localhost"), (b"accept", b"text/event-stream"), (b"cookie", cookie.encode())]
        self._scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": headers,
            "scheme": "http",
        }
        self._told: asyncio.Queue[str] = asyncio.Queue()
        self._gone = asyncio.Event()
        self.status = 0
        self.ended = asyncio.Event()

    async def run(self) -> None:
        await self._made(self._scope, self._receive, self._send)
        self.ended.set()

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["body"]:
            await self._told.put(message["body"].decode())

    async def hear(self) -> str:
        """Give the next event."""
        async with asyncio.timeout(HUNG):
            return await self._told.get()

    def leave(self) -> None:
        self._gone.set()


@asynccontextmanager
async def watching(made: Dashboard, path: str = "/", cookie: str = "") -> AsyncIterator[Viewer]:
    """Have a page open, live, while the block runs."""
    viewer = Viewer(made, path, cookie)
    running = asyncio.create_task(viewer.run())
    try:
        yield viewer
    finally:
        viewer.leave()
        async with asyncio.timeout(HUNG):
            await running
