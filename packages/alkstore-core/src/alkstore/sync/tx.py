"""A transaction for a plain thread."""

from collections.abc import Iterable, Mapping
from typing import Unpack

from alkstore import transaction
from alkstore.sync.proxy import Call, Options, Proxy, inner
from alkstore.sync.queue import JobHandle, Outbox, Queue
from alkstore.sync.stream import Stream
from alkstore.values import EnqueueOpts, Job, StreamEvent

__all__ = ["Tx"]


class Tx(Proxy[transaction.Tx]):
    """An open transaction, as `alkstore.Tx`. It belongs to the thread that began it."""

    __slots__ = ()

    def enqueue(self, queue: Queue | str, payload: object, **options: Unpack[Options]) -> int:
        """Put a job into a queue at commit; as `alkstore.Tx.enqueue`."""
        return self._call(lambda tx, _: tx.enqueue(inner(queue), payload, **options))

    def enqueue_batch(
        self,
        queue: Queue | str,
        payloads: Iterable[object],
        *,
        each: Iterable[EnqueueOpts] | None = None,
        **options: Unpack[Options],
    ) -> list[int]:
        """Put many jobs into a queue at commit; as `alkstore.Tx.enqueue_batch`."""
        return self._call(lambda tx, _: tx.enqueue_batch(inner(queue), payloads, each=each, **options))

    def outbox_enqueue(self, outbox: Outbox | str, payload: object, **options: Unpack[Options]) -> int:
        """Put an entry into an outbox at commit; as `alkstore.Tx.outbox_enqueue`."""
        return self._call(lambda tx, _: tx.outbox_enqueue(inner(outbox), payload, **options))

    def get_job(self, queue: Queue | str, id: int) -> Job | None:
        """Read one job, own writes included; as `alkstore.Tx.get_job`."""
        return self._call(lambda tx, _: tx.get_job(inner(queue), id))

    def ack(self, handle: JobHandle) -> None:
        """Ack a claim with the commit; as `alkstore.Tx.ack`."""
        self._call(lambda tx, _: tx.ack(inner(handle)))

    def publish(
        self,
        stream: Stream | str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Append an event at commit; as `alkstore.Tx.publish`."""
        return self._call(lambda tx, _: tx.publish(inner(stream), payload, key=key, headers=headers))

    def publish_batch(
        self,
        stream: Stream | str,
        payloads: Iterable[object],
        *,
        key: str | None = None,
        keys: Iterable[str | None] | None = None,
    ) -> list[int]:
        """Append events at commit; as `alkstore.Tx.publish_batch`."""
        return self._call(lambda tx, _: tx.publish_batch(inner(stream), payloads, key=key, keys=keys))

    def read_since(self, stream: Stream | str, offset: int, limit: int = 100) -> list[StreamEvent]:
        """Read events after an offset, own ones included; as `alkstore.Tx.read_since`."""
        return self._call(lambda tx, _: tx.read_since(inner(stream), offset, limit))

    def read_from_consumer(self, stream: Stream | str, consumer: str, limit: int = 100) -> list[StreamEvent]:
        """Read events after a consumer's position, and hold that; as `alkstore.Tx.read_from_consumer`."""
        return self._call(lambda tx, _: tx.read_from_consumer(inner(stream), consumer, limit))

    def get_offset(self, stream: Stream | str, consumer: str) -> int:
        """Give a consumer's position; as `alkstore.Tx.get_offset`."""
        return self._call(lambda tx, _: tx.get_offset(inner(stream), consumer))

    def save_offset(
        self, stream: Stream | str, consumer: str, offset: int, *, after: int | None = None
    ) -> None:
        """Save a consumer's position at commit; as `alkstore.Tx.save_offset`."""
        self._call(lambda tx, _: tx.save_offset(inner(stream), consumer, offset, after=after))

    notify = Call(transaction.Tx.notify)
    commit = Call(transaction.Tx.commit)
    rollback = Call(transaction.Tx.rollback)
