"""A dashboard on a real port, in a thread with a loop of its own: a browser's driver wants the main one for itself."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvicorn
from dashboards import HOSTILE
from hanging import HUNG

import alkstore
from alkstore import Store, dashboard
from alkstore.dashboard import Dashboard, Witness

__all__ = ["Served", "fill", "served"]

T = TypeVar("T")

TRACEBACK = (
    'Traceback (most recent call last):\n  File "bill.py", line 12, in charge\nCardDeclined: do_not_honor'
)


class Served:
    """A store in memory and its dashboard, at ``address``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store, made: Dashboard, address: str) -> None:
        self.store = store
        self.made = made
        self.address = address
        self._loop = loop

    def do(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Do something with the store, in its loop."""

        async def go() -> T:
            return await work(self.store)

        return asyncio.run_coroutine_threadsafe(go(), self._loop).result(HUNG)


@contextmanager
def served(*, port: int = 0, interval: float = 0.1, **options: Any) -> Iterator[Served]:
    """Serve the dashboard of a new store while the block runs."""
    bound = socket.create_server(("127.0.0.1", port))
    ready = threading.Event()
    found: list[Served] = []

    async def serve() -> None:
        witness = Witness()
        async with alkstore.open("mem://", observers=[witness]) as store:
            made = dashboard.app(store, witness=witness, interval=interval, **options)
            config = uvicorn.Config(made, log_level="error", lifespan="off", ws="none")
            server = uvicorn.Server(config)
            address = f"http://127.0.0.1:{bound.getsockname()[1]}"
            found.append(Served(asyncio.get_running_loop(), store, made, address))
            servers.append(server)
            ready.set()
            await server.serve(sockets=[bound])

    servers: list[uvicorn.Server] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(HUNG)
    try:
        yield found[0]
    finally:
        found[0].made.end()
        servers[0].should_exit = True
        thread.join(HUNG)
        assert not thread.is_alive()


async def fill(store: Store) -> None:
    """Put into a store what a page can show."""
    await store.queue("mail").enqueue_batch([{"to": f"user{n}@example.org"} for n in range(240)])
    await store.queue("mail").enqueue_batch(range(37), delay=900)
    await store.queue("thumbnails").enqueue_batch(range(60))
    for _ in await store.queue("thumbnails").claim_batch(4, worker_id="worker-1:4711"):
        pass
    for number in range(6):
        await store.queue("billing").enqueue({"invoice": 1_000 + number, "note": HOSTILE})
        handle = await store.queue("billing").claim_one()
        assert handle is not None
        await handle.fail(TRACEBACK if number else HOSTILE)
    await store.outbox("webhooks").enqueue({"url": "https://example.org"})
    await store.queue(HOSTILE).enqueue(HOSTILE)
    await store.stream("orders").publish_batch(range(500))
    await store.stream("orders").save_offset("mailer", 480)
    await store.stream("orders").save_offset(HOSTILE, 120)
    await store.stream("audit").publish(1)
    await store.schedule("nightly-report", "@every 1d", "reports", {"format": "pdf"})
    await store.schedule(HOSTILE, "@every 5m", "inbox", HOSTILE)
    _ = await store.try_lock("report", ttl=3_600)
