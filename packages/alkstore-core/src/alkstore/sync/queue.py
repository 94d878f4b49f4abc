"""Queues, claims and outboxes for plain threads."""

from collections.abc import Callable, Iterator
from typing import Any

from alkstore import outbox, queue
from alkstore.errors import InvalidArgument, show
from alkstore.job import JobHandle as AsyncHandle
from alkstore.stop import StopToken
from alkstore.sync.portal import Bounce, Portal
from alkstore.sync.proxy import Call, Changed, Context, Proxy
from alkstore.values import Job

__all__ = ["JobHandle", "Outbox", "Queue"]


class JobHandle(Proxy[AsyncHandle]):
    """One claim of one job, as `alkstore.JobHandle`: ``with handle:`` acks, retries or releases."""

    __slots__ = ("_block",)

    @property
    def job(self) -> Job:
        """The job as it was at the claim."""
        return self._target.job

    ack = Call(AsyncHandle.ack)
    retry = Call(AsyncHandle.retry)
    fail = Call(AsyncHandle.fail)
    release = Call(AsyncHandle.release)
    heartbeat = Call(AsyncHandle.heartbeat)

    def hold(self) -> Context[None]:
        """Renew the claim for as long as the block runs; as `alkstore.JobHandle.hold`.

        A thread cannot be interrupted: a lost claim ends the alkstore call that the block is in, if it is in one, and
        leaving the block raises `ClaimLost`.
        """
        return Context(self._portal, self._target.hold, lambda _, nothing: None)

    def __enter__(self) -> "JobHandle":
        self._block = Context(self._portal, lambda: self._target, lambda _, nothing: None)
        self._block.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool:
        return self._block.__exit__(*error)


Handler = Callable[[JobHandle], object]


def _handle(portal: Portal, found: AsyncHandle | None) -> JobHandle | None:
    return None if found is None else JobHandle(portal, found)


def _handles(portal: Portal, found: list[AsyncHandle]) -> list[JobHandle]:
    return [JobHandle(portal, each) for each in found]


def _bounced(portal: Portal, handler: Handler, bounce: Bounce) -> Callable[[AsyncHandle], Any]:
    """Make a plain function what the async surface calls: it runs on the thread that waits."""
    if not callable(handler):
        raise InvalidArgument(f"handler must be a function that takes the handle, got {show(handler)}")

    async def handle(claim: AsyncHandle) -> None:
        await bounce(lambda: handler(JobHandle(portal, claim)))

    return handle


class Queue(Proxy[queue.Queue]):
    """A name and its stamps, as `alkstore.Queue`."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self._reach()[1].name

    enqueue = Call(queue.Queue.enqueue)
    enqueue_batch = Call(queue.Queue.enqueue_batch)
    claim_one = Changed(queue.Queue.claim_one, _handle)
    claim_batch = Changed(queue.Queue.claim_batch, _handles)
    claim = Changed(queue.Queue.claim, _handle)
    get_job = Call(queue.Queue.get_job)
    list = Call(queue.Queue.list)
    sweep_expired = Call(queue.Queue.sweep_expired)
    cancel = Call(queue.Queue.cancel)
    redrive = Call(queue.Queue.redrive)
    purge_dead = Call(queue.Queue.purge_dead)
    stats = Call(queue.Queue.stats)

    def claims(self, *, stop: StopToken | None = None, worker_id: str | None = None) -> Iterator[JobHandle]:
        """Yield jobs as they become ready, one at a time; as `alkstore.Queue.claims`."""
        portal, target = self._reach()
        found = target.claims(stop=stop, worker_id=worker_id)

        async def following() -> AsyncHandle | None:
            handle: AsyncHandle | None = await anext(found, None)
            return handle

        while (handle := portal.call(lambda _: following())) is not None:
            yield JobHandle(portal, handle)

    def run_once(self, handler: Handler, *, worker_id: str | None = None) -> bool:
        """Claim one job and handle it on this thread; as `alkstore.Queue.run_once`."""
        portal, target = self._reach()
        return portal.call(
            lambda bounce: target.run_once(_bounced(portal, handler, bounce), worker_id=worker_id)
        )


class Outbox(Proxy[outbox.Outbox]):
    """A named outbox, as `alkstore.Outbox`."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self._reach()[1].name

    @property
    def jobs(self) -> Queue:
        """The backing queue: list, get, cancel, sweep, redrive, purge, stats."""
        portal, target = self._reach()
        return Queue(portal, target.jobs)

    enqueue = Call(outbox.Outbox.enqueue)

    def run_once(self, delivery: Handler, *, worker_id: str | None = None) -> bool:
        """Claim one entry and deliver it on this thread; as `alkstore.Outbox.run_once`."""
        portal, target = self._reach()
        return portal.call(
            lambda bounce: target.run_once(_bounced(portal, delivery, bounce), worker_id=worker_id)
        )

    def run(self, delivery: Handler, *, stop: StopToken) -> None:
        """Deliver on this thread, one entry after the other, until ``stop``; as `alkstore.Outbox.run`.

        For several at once call it on several threads, or run an `alkstore.worker.Worker`.
        """
        portal, target = self._reach()
        portal.call(lambda bounce: target.run(_bounced(portal, delivery, bounce), stop=stop))
