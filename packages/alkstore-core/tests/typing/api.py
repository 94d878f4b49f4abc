"""The public surface used as a user would use it: only type-checked, never run."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypedDict, assert_type

import alkstore
from alkstore.testing import ManualClock, seeded


@dataclass
class Letter:
    to: str


class Order(TypedDict):
    id: int


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def opening() -> None:
    async with alkstore.open("mem://", clock=ManualClock(NOON), random=seeded(7), worker_id="w") as store:
        entered: alkstore.Store = store
        await entered.aclose()
    opened: alkstore.Store = await alkstore.open("sqlite:///app.db", wait_timeout=timedelta(seconds=3))
    await opened.aclose()
    versions: list[str] = [alkstore.CONTRACT_VERSION, alkstore.__version__]
    assert_type(versions, list[str])


async def looking(store: alkstore.Store) -> None:
    assert_type(await store.queues(), list[str])
    assert_type(await store.streams(), list[str])
    assert_type(await store.outboxes(), list[str])
    assert_type(await store.schedules(), list[alkstore.Schedule])
    assert_type(await store.locks(), list[alkstore.LockInfo])


async def enqueueing(store: alkstore.Store) -> None:
    mail = store.queue(
        "mail", visibility_timeout=60, max_attempts=10, base_delay=0.5, expires=timedelta(days=1)
    )
    assert_type(mail, alkstore.Queue)
    assert_type(mail.name, str)
    assert_type(await mail.enqueue({"to": "ada@example.org"}, delay=5, headers={"trace": "1"}), int)
    assert_type(await mail.enqueue(None, run_at=NOON, priority=-1, max_attempts=1), int)
    each = [alkstore.EnqueueOpts(delay=1, priority=2), alkstore.EnqueueOpts(run_at=NOON, headers={"a": "b"})]
    assert_type(await mail.enqueue_batch([1, "two"], each=each), list[int])
    assert_type(await mail.enqueue_batch((number for number in range(3)), priority=1), list[int])


async def claiming(mail: alkstore.Queue, stop: alkstore.StopToken) -> None:
    assert_type(await mail.claim_one(), alkstore.JobHandle | None)
    assert_type(await mail.claim_batch(10, worker_id="w"), list[alkstore.JobHandle])
    assert_type(await mail.claim(timeout=timedelta(seconds=1)), alkstore.JobHandle | None)
    async for handle in mail.claims(stop=stop):
        assert_type(handle, alkstore.JobHandle)
        async with handle, handle.hold():
            assert_type(handle.job.payload_as(Letter), Letter)

    async def handler(handle: alkstore.JobHandle) -> None:
        await handle.ack()

    assert_type(await mail.run_once(handler, worker_id="w"), bool)


async def settling(handle: alkstore.JobHandle) -> None:
    assert_type(await handle.heartbeat(), bool)
    assert_type(await handle.heartbeat(timedelta(minutes=1)), bool)
    assert_type(await handle.ack(), bool)
    assert_type(await handle.retry(error=ValueError("no"), delay=1), bool)
    assert_type(await handle.fail("no such address"), bool)
    assert_type(await handle.release(), bool)


async def administering(mail: alkstore.Queue) -> None:
    assert_type(await mail.get_job(7), alkstore.Job | None)
    assert_type(
        await mail.list(state=alkstore.JobState.DEAD, error="x", after=7, limit=10), list[alkstore.Job]
    )
    assert_type(await mail.sweep_expired(), int)
    assert_type(await mail.cancel(7), bool)
    assert_type(await mail.redrive(7, 8), int)
    assert_type(await mail.purge_dead(older_than=timedelta(days=7)), int)
    stats = await mail.stats()
    assert_type(stats.ready + stats.delayed + stats.processing + stats.stale + stats.dead, int)
    assert_type(stats.oldest_ready_age, timedelta | None)


def reading_a_job(job: alkstore.Job) -> None:
    assert_type(job.id, int)
    assert_type(job.queue, str)
    assert_type(job.payload, object)
    assert_type(job.payload_bytes, bytes)
    assert_type(job.headers, Mapping[str, str])
    assert_type(job.state, alkstore.JobState)
    assert_type(job.priority, int)
    assert_type(job.run_at, datetime)
    assert_type(job.expires_at, datetime | None)
    assert_type((job.attempts, job.max_attempts), tuple[int, int])
    assert_type((job.visibility_timeout, job.base_delay), tuple[timedelta, timedelta])
    assert_type(job.worker_id, str | None)
    assert_type(job.deadline, datetime | None)
    assert_type(job.created_at, datetime)
    assert_type(job.scheduled_for, datetime | None)
    assert_type((job.retry_error, job.last_error), tuple[str | None, str | None])
    assert_type(job.died_at, datetime | None)


async def streaming(store: alkstore.Store) -> None:
    orders = store.stream("orders")
    assert_type(orders, alkstore.Stream)
    assert_type(await orders.publish({"id": 7}, key="7", headers={}), int)
    assert_type(await orders.publish_batch([1, 2], keys=["a", None]), list[int])
    assert_type(await orders.read_since(0, 10), list[alkstore.StreamEvent])
    assert_type(await orders.read_from_consumer("mailer"), list[alkstore.StreamEvent])
    assert_type(await orders.save_offset("mailer", 7), bool)
    await orders.reset_offset("mailer", 0)
    assert_type(await orders.get_offset("mailer"), int)
    assert_type(await orders.trim_to(7), int)
    assert_type(await orders.head(), int)
    assert_type(await orders.consumers(), dict[str, int])


async def subscribing(orders: alkstore.Stream, tx: alkstore.Tx) -> None:
    async with orders.subscribe("mailer", after=3) as receiver:
        assert_type(receiver, alkstore.EventReceiver)
        assert_type(await receiver.recv(), alkstore.StreamEvent | None)
        assert_type(await receiver.try_recv(), alkstore.StreamEvent | None)
        assert_type(await receiver.recv_page(10), list[alkstore.StreamEvent])
        async for event in receiver:
            assert_type(event, alkstore.StreamEvent)
            assert_type(event.payload_as(Order), Order)
            assert_type((event.offset, event.stream, event.key), tuple[int, str, str | None])
            await receiver.save(event, tx=tx)
    opened = await orders.subscribe()
    await opened.aclose()


async def waking(store: alkstore.Store) -> None:
    await store.notify("news", {"text": "for psql"})
    async with store.listen("news") as receiver:
        assert_type(receiver, alkstore.WakeReceiver)
        assert_type(await receiver.recv(), alkstore.Wake | None)
        assert_type(await receiver.try_recv(), alkstore.Wake | None)
        assert_type(await receiver.recv_timeout(0.5), alkstore.Wake | None)
        async for wake in receiver:
            assert_type((wake.channel, wake.reconnected), tuple[str, bool])


async def locking(store: alkstore.Store) -> None:
    lock = await store.try_lock("report", 30)
    assert_type(lock, alkstore.Lock | None)
    if lock is not None:
        async with lock:
            assert_type((lock.name, lock.fence, lock.held), tuple[str, int, bool])
            assert_type(await lock.renew(timedelta(seconds=30)), bool)
            assert_type(await lock.release(), bool)
    async with store.lock("report", ttl=10, timeout=5) as held:
        assert_type(held, alkstore.Lock)
    assert_type(await store.lock("report"), alkstore.Lock)


async def scheduling(store: alkstore.Store, stop: alkstore.StopToken) -> None:
    schedule = await store.schedule(
        "nightly", "@every 1d", store.queue("reports"), {}, anchor=NOON, priority=1, max_attempts=5
    )
    assert_type(schedule, alkstore.Schedule)
    assert_type((schedule.name, schedule.spec, schedule.queue), tuple[str, str, str])
    assert_type(schedule.opts, alkstore.ScheduleOpts)
    assert_type(schedule.anchor, datetime | None)
    assert_type(schedule.next_fire_at, datetime)
    assert_type(await store.unschedule("nightly"), bool)
    assert_type(await store.tick_schedules(), int)
    await store.run_schedules(stop)
    await store.supervise_schedules(stop)


async def delivering(store: alkstore.Store, stop: alkstore.StopToken) -> None:
    outbox = store.outbox("mail")
    assert_type(outbox, alkstore.Outbox)
    assert_type(outbox.jobs, alkstore.Queue)
    assert_type(await outbox.enqueue({"to": "ada"}, delay=1), int)

    async def deliver(handle: alkstore.JobHandle) -> None:
        await handle.heartbeat()

    assert_type(await outbox.run_once(deliver), bool)
    await outbox.run(deliver, stop=stop, concurrency=4)


async def transacting(store: alkstore.Store, handle: alkstore.JobHandle) -> None:
    async with store.begin_tx() as tx:
        assert_type(tx, alkstore.Tx)
        assert_type(await tx.enqueue("mail", 1, delay=5), int)
        assert_type(await tx.enqueue_batch(store.queue("mail"), [1, 2]), list[int])
        assert_type(await tx.outbox_enqueue("mail", 1), int)
        assert_type(await tx.publish("orders", 1, key="7"), int)
        assert_type(await tx.publish_batch(store.stream("orders"), [1, 2]), list[int])
        await tx.notify("news")
        await tx.ack(handle)
        await tx.save_offset("orders", "mailer", 7, after=3)
        assert_type(await tx.get_offset("orders", "mailer"), int)
        assert_type(await tx.read_since("orders", 0), list[alkstore.StreamEvent])
        assert_type(await tx.read_from_consumer("orders", "mailer", 10), list[alkstore.StreamEvent])
        assert_type(await tx.get_job("mail", 7), alkstore.Job | None)
        await tx.commit()
    begun = await store.begin_tx()
    await begun.rollback()
    async with store.join(object()) as joined:
        assert_type(joined, alkstore.Tx)
    with alkstore.outside_tx():
        await store.notify("news")


async def stopping() -> None:
    stop = alkstore.StopToken()
    asyncio.get_running_loop().call_soon(stop.cancel)
    await stop.wait()
    assert_type(stop.is_cancelled, bool)


def catching(error: alkstore.AlkstoreError) -> str:
    match error:
        case (
            alkstore.InvalidName(name=name) | alkstore.ReservedName(name=name) | alkstore.LockLost(name=name)
        ):
            return name
        case alkstore.PayloadTooLarge(size=size, limit=limit):
            return str(size - limit)
        case alkstore.OffsetConflict(expected=expected, found=found):
            return f"{expected} {found}"
        case alkstore.InvalidSpec(spec=spec):
            return spec
        case _:
            return str(error)
