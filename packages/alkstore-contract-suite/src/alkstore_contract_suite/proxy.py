"""A TCP proxy before a server that cuts, refuses, delays and swallows.

It lives in the loop of the test. A fault holds for the links that its predicate picks, those to come included,
and is asked for at every chunk of bytes: a link can become a listener's long after it was made.
"""

import asyncio
import re
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias, cast

__all__ = ["Direction", "Link", "Predicate", "Proxy", "Target", "everything"]

Target: TypeAlias = Path | tuple[str, int]
"""Where a server listens: its Unix socket, or a host and a port."""

Direction: TypeAlias = Literal["to_server", "to_client"]

SEEN: Final = 262_144
"""Bytes of a client that are kept for predicates, from its first on."""

_BOTH: Final[tuple[Direction, ...]] = ("to_server", "to_client")

_RESET: Final = struct.pack("ii", 1, 0)


class _End(asyncio.Protocol):
    """One of a link's two connections: what it reads, its peer writes."""

    peer: "_End"

    def __init__(self, link: "Link", direction: Direction) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost = False
        self._link = link
        self._direction = direction
        # None is the end. Timers of one instant run in any order, so they take what is first here.
        self._waiting: deque[bytes | None] = deque()
        self._timers: deque[asyncio.TimerHandle] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._link.made(self)

    def data_received(self, data: bytes) -> None:
        if self._direction == "to_server":
            self._link.seen += data[: SEEN - len(self._link.seen)]
        self._forward(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if error is None:
            self._forward(None)
        elif not self._link.proxy.fault.swallows(self._link, self._direction):
            self.peer.reset()
        self._link.ended()

    def pause_writing(self) -> None:
        if self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def _forward(self, data: bytes | None) -> None:
        fault = self._link.proxy.fault
        if fault.swallows(self._link, self._direction):
            return
        self._waiting.append(data)
        delay = fault.delays(self._link)
        if delay == 0 and not self._timers:
            self._pass_on()
            return
        loop = asyncio.get_running_loop()
        due = max(loop.time() + delay, self._timers[-1].when() if self._timers else 0)
        self._timers.append(loop.call_at(due, self._timed))

    def _timed(self) -> None:
        self._timers.popleft()
        self._pass_on()

    def _pass_on(self) -> None:
        data, to = self._waiting.popleft(), self.peer.transport
        if to is None or self.peer.lost or to.is_closing():
            return
        if data is None:
            to.close()
        else:
            to.write(data)

    def reset(self) -> None:
        """Close at once, and have the other side told so: by RST, where there is such a thing."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._waiting.clear()
        if self.transport is None or self.lost:
            return
        connection = self.transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


class Link:
    """A client's connection, with the one to the server that belongs to it.

    Attributes:
        order: 0 for the proxy's first link, 1 for the second.
        seen: The first bytes that the client sent, up to 256 KiB.
    """

    def __init__(self, proxy: "Proxy", order: int) -> None:
        self.order = order
        self.seen = bytearray()
        self.proxy = proxy
        self.client = _End(self, "to_server")
        self._server = _End(self, "to_client")
        self.client.peer, self._server.peer = self._server, self.client
        self._connecting: asyncio.Task[None] | None = None

    def has_sent(self, pattern: bytes | re.Pattern[bytes]) -> bool:
        """Whether a regular expression is found in what the client sent."""
        return re.search(pattern, self.seen) is not None

    def made(self, end: _End) -> None:
        if end is self._server:
            assert self.client.transport is not None
            self.client.transport.resume_reading()
        elif self.proxy.fault.refuses(self):
            end.reset()
        else:
            # Nothing is read before there is somebody to pass it on to.
            cast(asyncio.Transport, end.transport).pause_reading()
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            # Not in a finally: a task that is cancelled before its first step has none.
            self._connecting.add_done_callback(self._tried)

    async def _connect(self) -> None:
        loop, target = asyncio.get_running_loop(), self.proxy.target
        try:
            if isinstance(target, Path):
                await loop.create_unix_connection(lambda: self._server, str(target))
            else:
                await loop.create_connection(lambda: self._server, *target)
        except OSError:
            self.client.reset()

    def _tried(self, _task: asyncio.Task[None]) -> None:
        self._connecting = None
        if self.client.lost:
            self._server.reset()
        self.ended()

    def reset(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        self.client.reset()
        self._server.reset()

    def ended(self) -> None:
        """Leave the proxy, once there is nothing left that could become of this link."""
        if (
            self.client.lost
            and self._connecting is None
            and (self._server.lost or not self._server.transport)
        ):
            self.proxy.left(self)


Predicate: TypeAlias = Callable[[Link], bool]


def everything(_link: Link) -> bool:
    """Pick every link."""
    return True


class _Fault:
    """What goes wrong at the moment, for whom."""

    def __init__(self) -> None:
        self.refused: Predicate | None = None
        self.delayed: tuple[float, Predicate] = (0, everything)
        self.swallowed: dict[Direction, Predicate] = {}

    def refuses(self, link: Link) -> bool:
        return self.refused is not None and self.refused(link)

    def delays(self, link: Link) -> float:
        seconds, only = self.delayed
        return seconds if seconds and only(link) else 0

    def swallows(self, link: Link, direction: Direction) -> bool:
        only = self.swallowed.get(direction)
        return only is not None and only(link)


class Proxy:
    """Stands at a loopback port before a server.

    Example::

        async with Proxy(server.folder / "socket") as proxy:
            store = await make_store("kv://{}:{}".format(*proxy.address))
            proxy.cut()
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.fault = _Fault()
        self._made = 0
        self._links: dict[int, Link] = {}
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Reset every connection and stop listening; return when nothing is left."""
        if self._listener is None:
            return
        self._listener.close()
        # Somebody who was let in by the system may be shown to us only now.
        self.refuse()
        self.cut()
        await self._listener.wait_closed()
        await self._quiet.wait()
        self._listener = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the proxy, within its ``async with``."""
        assert self._listener is not None, "a proxy has an address only inside its async with"
        host, port = self._listener.sockets[0].getsockname()[:2]
        return host, port

    def _accept(self) -> asyncio.Protocol:
        link = Link(self, self._made)
        self._links[link.order] = link
        self._made += 1
        self._quiet.clear()
        return link.client

    def left(self, link: Link) -> None:
        self._links.pop(link.order, None)
        if not self._links:
            self._quiet.set()

    # ---------------------------------------------------------------- who is there

    @property
    def links(self) -> list[Link]:
        """The links whose client is connected, oldest first."""
        return [link for link in self._links.values() if not link.client.lost]

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self.links)

    # ---------------------------------------------------------------- what goes wrong

    def cut(self, only: Predicate = everything) -> int:
        """Reset links now, on both sides, and return how many; new ones are let in."""
        picked = [link for link in self._links.values() if only(link)]
        for link in picked:
            link.reset()
        return len(picked)

    def refuse(self, on: bool = True, only: Predicate = everything) -> None:
        """Reset new connections as soon as they are made; a predicate can only know their order."""
        self.fault.refused = only if on else None

    def delay(self, seconds: float, only: Predicate = everything) -> None:
        """Pass every chunk on so much later, in both directions, in order; 0 ends it for what comes then."""
        self.fault.delayed = (seconds, only)

    def swallow(
        self, on: bool = True, *, direction: Direction | None = None, only: Predicate = everything
    ) -> None:
        """Take bytes and ends of connections and pass none on: as if a cable were pulled.

        Args:
            direction: Both by default.

        What was swallowed stays lost: a link that lost half a message is of no use when this has ended.
        """
        for each in _BOTH if direction is None else (direction,):
            self.fault.swallowed.pop(each, None)
            if on:
                self.fault.swallowed[each] = only
