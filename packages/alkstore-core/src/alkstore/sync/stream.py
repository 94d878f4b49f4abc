"""Streams and receivers for plain threads."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from alkstore import stream, wake
from alkstore.sync.proxy import Call, Context, Proxy, inner
from alkstore.values import StreamEvent, Wake

if TYPE_CHECKING:
    from alkstore.sync.tx import Tx

R = TypeVar("R", bound="wake.Receiver")

__all__ = ["EventReceiver", "Stream", "WakeReceiver"]


class _Receiver(Proxy[R]):
    __slots__ = ()

    def close(self) -> None:
        """Stop hearing: drops what is pending and ends a call that waits in another thread. Closing twice is fine."""
        self._call(lambda receiver, _: receiver.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


class WakeReceiver(_Receiver[wake.WakeReceiver]):
    """Hears one channel, as `alkstore.WakeReceiver`."""

    __slots__ = ()
    recv = Call(wake.WakeReceiver.recv)
    try_recv = Call(wake.WakeReceiver.try_recv)
    recv_timeout = Call(wake.WakeReceiver.recv_timeout)

    def __iter__(self) -> Iterator[Wake]:
        while (heard := self.recv()) is not None:
            yield heard


class EventReceiver(_Receiver[stream.EventReceiver]):
    """Gives a stream's events in order, as `alkstore.EventReceiver`."""

    __slots__ = ()
    recv = Call(stream.EventReceiver.recv)
    recv_page = Call(stream.EventReceiver.recv_page)
    try_recv = Call(stream.EventReceiver.try_recv)

    def save(self, event: StreamEvent, *, tx: "Tx | None" = None) -> None:
        """Move the consumer's position to an event; as `alkstore.EventReceiver.save`."""
        self._call(lambda receiver, _: receiver.save(event, tx=inner(tx)))

    def __iter__(self) -> Iterator[StreamEvent]:
        while (event := self.recv()) is not None:
            yield event


class Stream(Proxy[stream.Stream]):
    """A named stream, as `alkstore.Stream`."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self._reach()[1].name

    publish = Call(stream.Stream.publish)
    publish_batch = Call(stream.Stream.publish_batch)
    read_since = Call(stream.Stream.read_since)
    read_from_consumer = Call(stream.Stream.read_from_consumer)
    save_offset = Call(stream.Stream.save_offset)
    reset_offset = Call(stream.Stream.reset_offset)
    get_offset = Call(stream.Stream.get_offset)
    trim_to = Call(stream.Stream.trim_to)
    head = Call(stream.Stream.head)
    consumers = Call(stream.Stream.consumers)

    def subscribe(self, consumer: str | None = None, *, after: int | None = None) -> Context[EventReceiver]:
        """Open a receiver: ``with stream.subscribe("mailer") as events``; as `alkstore.Stream.subscribe`."""
        portal, target = self._reach()
        return Context(portal, lambda: target.subscribe(consumer, after=after), EventReceiver)
