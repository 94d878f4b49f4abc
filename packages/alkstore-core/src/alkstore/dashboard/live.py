"""Server-sent events: the changing part of a page, again after every look."""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import Receive, Scope, Send

from alkstore.dashboard.look import Look

__all__ = ["LASTING", "Live", "event"]

LASTING: Final = 30.0
"""Seconds that an answer lasts; the browser asks again. A server that is to end would wait for it without an end of its own."""

PATIENCE: Final = 5.0
"""Seconds more that a viewer has who does not take in what is sent."""

AGAIN: Final = 300
"""Milliseconds after which the browser asks again."""


class Live:
    """An answer that goes on: ``text`` now and after every look, until the viewer goes, the dashboard ends, or time is up.

    Args:
        is_allowed: Asked before every event: whoever has logged out is told nothing more.
    """

    def __init__(self, look: Look, text: Callable[[], str], is_allowed: Callable[[], bool]) -> None:
        self._look = look
        self._text = text
        self._is_allowed = is_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        ended = asyncio.Event()
        unsubscribe = self._look.ending.subscribe(ended.set)
        gone = asyncio.ensure_future(_disconnect(receive, ended))
        timer = asyncio.get_running_loop().call_later(LASTING, ended.set)
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with asyncio.timeout(LASTING + PATIENCE), self._look.watched():
                await self._look.refresh()  # or the first event would be of long ago, or of nothing
                await self._tell(send, ended)
        except TimeoutError:
            pass  # it took nothing in, as of a machine that sleeps: the connection is closed under it
        finally:
            timer.cancel()
            unsubscribe()
            gone.cancel()

    async def _tell(self, send: Send, ended: asyncio.Event) -> None:
        body = f"retry: {AGAIN}\n\n".encode()
        waiting = asyncio.ensure_future(ended.wait())
        try:
            while not ended.is_set() and self._is_allowed():
                changed = self._look.changed()
                body += event(self._text())
                await send({"type": "http.response.body", "body": body, "more_body": True})
                body = b""
                await asyncio.wait((changed, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        await send({"type": "http.response.body", "body": b""})


async def _disconnect(receive: Receive, ended: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    ended.set()


def event(text: str) -> bytes:
    """Give a text as one event: each of its lines is marked, so that nothing in it can begin another one."""
    return "".join(f"data: {line}\n" for line in text.splitlines() or [""]).encode() + b"\n"
