"""The surface for plain threads: the same meaning, by with and plain calls, on whatever thread."""

import asyncio
import gc
import inspect
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hanging import HUNG

import alkstore
import alkstore.sync
import alkstore.testing
from alkstore import (
    ClaimLost,
    Closed,
    HandleConsumed,
    InsideTransaction,
    InvalidArgument,
    InvalidName,
    JobState,
    LockLost,
    LockTimeout,
    StopToken,
)
from alkstore.plain import PlainThread
from alkstore.sync.portal import Bounce, Portal


@pytest.fixture
def store(tmp_path: Path) -> Iterator[alkstore.sync.Store]:
    with alkstore.sync.open(f"sqlite:///{tmp_path}/app.db", durability="process") as opened:
        yield opened


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(10)


# ---------------------------------------------------------------- the surface


@pytest.mark.parametrize(
    ("plain", "inner", "missing"),
    [
        (alkstore.sync.Store, alkstore.Store, {"aclose"}),
        (alkstore.sync.Queue, alkstore.Queue, set()),
        (alkstore.sync.JobHandle, alkstore.JobHandle, set()),
        (alkstore.sync.Stream, alkstore.Stream, set()),
        (alkstore.sync.EventReceiver, alkstore.EventReceiver, {"aclose"}),
        (alkstore.sync.WakeReceiver, alkstore.WakeReceiver, {"aclose"}),
        (alkstore.sync.Lock, alkstore.Lock, set()),
        (alkstore.sync.Outbox, alkstore.Outbox, set()),
        (alkstore.sync.Tx, alkstore.Tx, {"connection"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_plain_class_has_every_operation_of_the_async_one(
    plain: type, inner: type, missing: set[str]
) -> None:
    def operations(of: type) -> set[str]:
        return {name for name in dir(of) if not name.startswith("_")}

    assert operations(inner) - operations(plain) == missing
    assert operations(plain) - operations(inner) <= {"close"}


def test_operations_carry_the_signature_and_the_docstring_of_the_async_ones(
    store: alkstore.sync.Store,
) -> None:
    call = store.queue("q").enqueue

    assert inspect.signature(call, follow_wrapped=True).parameters.keys() - {"self"} == (
        inspect.signature(alkstore.Queue.enqueue).parameters.keys() - {"self"}
    )
    assert call.__doc__ == alkstore.Queue.enqueue.__doc__ == alkstore.sync.Queue.enqueue.__doc__


def test_queues_are_enqueued_claimed_and_looked_at(store: alkstore.sync.Store) -> None:
    queue = store.queue("mail", max_attempts=2)
    id = queue.enqueue({"to": "ada"})
    assert queue.enqueue_batch([1, 2]) == [id + 1, id + 2]
    assert queue.name == "mail"
    assert "mail" in repr(queue)

    with queue.claim_one() as handle:  # type: ignore[union-attr]  # there is one
        assert handle.job.payload == {"to": "ada"}
    assert queue.get_job(id) is None
    first, second = queue.claim_batch(5)
    assert first.heartbeat(100)
    assert first.retry(error="later", delay=100)
    assert second.fail("never")
    assert queue.claim(timeout=0) is None
    assert [job.state for job in queue.list()] == [JobState.PENDING, JobState.DEAD]
    assert queue.redrive(id + 2) == 1
    assert queue.stats().ready == 1
    assert queue.cancel(id + 1)
    assert queue.purge_dead(older_than=0) == queue.sweep_expired() == 0
    assert store.queues() == ["mail"]


def test_a_block_around_a_handle_settles_it_by_how_it_ends(store: alkstore.sync.Store) -> None:
    queue = store.queue("q")
    queue.enqueue(1)
    with pytest.raises(ValueError, match="no"), queue.claim_one() as handle:  # type: ignore[union-attr]
        raise ValueError("no")

    (job,) = queue.list()
    assert job.attempts == 1
    assert "ValueError: no" in (job.retry_error or "")
    del handle


def test_claims_are_iterated_until_they_are_stopped(store: alkstore.sync.Store) -> None:
    queue, stop, seen = store.queue("q"), StopToken(), []
    queue.enqueue_batch([1, 2, 3])
    for handle in queue.claims(stop=stop):
        with handle:
            seen.append(handle.job.payload)
        if len(seen) == 3:
            stop.cancel()

    assert seen == [1, 2, 3]


def test_a_handler_runs_on_the_calling_thread_and_may_use_the_store(store: alkstore.sync.Store) -> None:
    queue, seen = store.queue("q"), []
    queue.enqueue(1)
    queue.enqueue(2)

    def handler(handle: alkstore.sync.JobHandle) -> None:
        seen.append(threading.current_thread())
        with store.begin_tx() as tx:
            tx.enqueue("next", handle.job.payload)
            tx.ack(handle)

    def failing(handle: alkstore.sync.JobHandle) -> None:
        raise ValueError("no")

    assert queue.run_once(handler)
    assert queue.run_once(failing)
    assert not queue.run_once(handler)
    assert seen == [threading.current_thread()]
    assert store.queue("next").stats().ready == 1
    assert queue.stats().delayed == 1
    with pytest.raises(InvalidArgument, match="handler must be a function"):
        queue.run_once(3)  # type: ignore[arg-type]


def test_streams_are_published_subscribed_and_saved(store: alkstore.sync.Store) -> None:
    stream = store.stream("orders")
    assert stream.publish({"id": 1}, key="a", headers={"h": "1"}) == 1
    assert stream.publish_batch([2, 3]) == [2, 3]
    with stream.subscribe("mailer", after=0) as events:
        event = events.recv()
        assert event is not None
        events.save(event)
        assert [each.payload for each in events.recv_page()] == [2, 3]
        assert events.try_recv() is None
    assert stream.consumers() == {"mailer": 1}
    assert [each.payload for each in stream.read_from_consumer("mailer")] == [2, 3]
    assert (stream.head(), stream.get_offset("mailer"), stream.name) == (3, 1, "orders")
    assert stream.save_offset("mailer", 2)
    stream.reset_offset("mailer", 0)
    assert stream.trim_to(1) == 1
    assert [each.offset for each in stream.read_since(0)] == [2, 3]
    assert store.streams() == ["orders"]


def test_a_receiver_is_iterated_until_another_thread_closes_it(store: alkstore.sync.Store) -> None:
    seen: list[str] = []
    with store.listen("orders") as receiver:
        assert receiver.try_recv() is None
        assert receiver.recv_timeout(0) is None

        def hear() -> None:
            seen.extend(wake.channel for wake in receiver)

        with ThreadPoolExecutor(1) as pool:
            hearing = pool.submit(hear)
            store.notify("orders", {"id": 1})
            deadline = time.monotonic() + HUNG
            while not seen and time.monotonic() < deadline:
                os.sched_yield()
            receiver.close()
            hearing.result(HUNG)
    assert seen == ["orders"]


def test_a_transaction_lands_whole_or_not_at_all(store: alkstore.sync.Store) -> None:
    queue, stream, outbox = store.queue("q"), store.stream("s"), store.outbox("o")
    with store.begin_tx() as tx:
        first = tx.enqueue(queue, 1, priority=3)
        assert tx.enqueue_batch("q", [2, 3]) == [first + 1, first + 2]
        tx.outbox_enqueue(outbox, 4)
        assert tx.publish(stream, 5) == 1
        assert tx.publish_batch("s", [6]) == [2]
        tx.notify("c")
        tx.save_offset("s", "mailer", 1, after=0)
        assert tx.get_offset(stream, "mailer") == 1
        assert [event.payload for event in tx.read_from_consumer(stream, "mailer")] == [6]
        assert [event.payload for event in tx.read_since("s", 0)] == [5, 6]
        assert tx.get_job(queue, first) is not None
    with pytest.raises(ZeroDivisionError), store.begin_tx() as tx:
        tx.enqueue("q", 1 // 0 if tx.enqueue("q", "never") else 0)
    with store.begin_tx() as tx:
        tx.enqueue("q", "never")
        tx.rollback()
    with store.begin_tx() as tx:
        tx.enqueue("q", "more")
        tx.commit()

    assert [job.payload for job in queue.list()] == [1, 2, 3, "more"]
    assert store.outboxes() == ["o"]
    with pytest.raises(Closed):
        tx.enqueue("q", 1)


def test_a_thread_inside_a_transaction_is_refused_a_write_beside_it_and_another_one_waits(
    store: alkstore.sync.Store,
) -> None:
    queue = store.queue("q")
    with store.begin_tx() as tx:
        with pytest.raises(InsideTransaction, match=r"test_sync\.py"):
            queue.enqueue(1)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(queue.enqueue, "other")
            tx.enqueue("q", "mine")
            assert not other.done()
            tx.commit()
            other.result(10)

    assert [job.payload for job in queue.list()] == ["mine", "other"]


def test_outside_tx_is_heeded(tmp_path: Path) -> None:
    with alkstore.sync.open("mem://") as store, store.begin_tx() as tx:
        tx.enqueue("q", 1)
        with alkstore.outside_tx():
            store.queue("other").enqueue(2)
        tx.rollback()
        assert store.queue("other").stats().ready == 1


def test_locks_are_taken_held_and_freed(store: alkstore.sync.Store) -> None:
    with store.lock("report", timeout=0) as lock:
        assert lock.name == "report"
        assert lock.held
        assert store.try_lock("report", 10) is None
        assert [info.fence for info in store.locks()] == [lock.fence]
        with pytest.raises(LockTimeout), store.lock("report", timeout=0):
            pass
    taken = store.try_lock("report", 10)
    assert taken is not None
    with taken as again:
        assert again.renew(20)
    assert not taken.held
    with pytest.raises(HandleConsumed):
        taken.release()
    assert store.locks() == []


def test_a_claim_that_is_lost_in_a_block_is_raised_at_its_end(tmp_path: Path) -> None:
    clock = alkstore.testing.ManualClock()
    with alkstore.sync.open(f"sqlite:///{tmp_path}/app.db", clock=clock, durability="process") as store:
        queue = store.queue("q", visibility_timeout=10)
        queue.enqueue(1)
        handle = queue.claim_one()
        assert handle is not None
        with pytest.raises(ClaimLost), handle.hold():
            store._call(lambda _, __: clock.advance(11))
        assert queue.stats().ready == 1
        lock = store.lock("report", ttl=10)
        with pytest.raises(LockLost), lock:
            store._call(lambda _, __: clock.advance(11))


def test_schedules_are_written_and_fired(store: alkstore.sync.Store) -> None:
    written = store.schedule("s", "@every 1h", store.queue("q"), {"a": 1}, priority=2, max_attempts=7)
    assert [schedule.name for schedule in store.schedules()] == [written.name] == ["s"]
    assert store.tick_schedules() == 0
    stop = StopToken()
    with ThreadPoolExecutor(2) as pool:
        leading = [pool.submit(store.supervise_schedules, stop), pool.submit(store.supervise_schedules, stop)]
        stop.cancel()
        for each in leading:
            each.result(10)
    assert store.unschedule("s")
    store.run_schedules(stop)


def test_an_outbox_is_delivered_on_the_calling_thread(store: alkstore.sync.Store) -> None:
    outbox, stop, seen = store.outbox("o"), StopToken(), []
    assert outbox.name == "o"
    for number in range(3):
        outbox.enqueue(number)

    def deliver(handle: alkstore.sync.JobHandle) -> None:
        seen.append((handle.job.payload, threading.current_thread()))
        if len(seen) == 3:
            stop.cancel()

    assert outbox.run_once(deliver)
    outbox.run(deliver, stop=stop)

    assert [payload for payload, _ in seen] == [0, 1, 2]
    assert {thread for _, thread in seen} == {threading.current_thread()}
    assert outbox.jobs.stats().ready == 0


# ---------------------------------------------------------------- threads


def test_many_threads_use_one_store_at_once(store: alkstore.sync.Store) -> None:
    queue = store.queue("q")
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(queue.enqueue, range(200)))
        claimed = [handle for handle in pool.map(lambda _: queue.claim_one(), range(200)) if handle]
        assert all(pool.map(lambda handle: handle.ack(), claimed))

    assert len(claimed) == 200
    assert queue.list() == []


def test_a_thread_that_has_ended_leaves_nothing_in_the_loop(store: alkstore.sync.Store) -> None:
    def tasks() -> int:
        return store._call(lambda _, __: _count())

    async def _count() -> int:
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    store.queue("q").enqueue(1)
    before = tasks()
    for _ in range(5):
        in_thread(store.queue("q").stats)

    assert tasks() == before


def test_a_call_that_waits_gets_closed_when_another_thread_closes_the_store(tmp_path: Path) -> None:
    store = alkstore.sync.open(f"sqlite:///{tmp_path}/app.db", durability="process")
    ended: list[type[BaseException]] = []

    def wait() -> None:
        try:
            store.queue("q").claim()
        except Closed as error:
            ended.append(type(error))

    store.queue("q").stats()
    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + HUNG
    while len(store._target._pumps) == 0 and time.monotonic() < deadline:
        os.sched_yield()
    store.close()
    for thread in threads:
        thread.join(HUNG)

    assert ended == [Closed] * 3
    store.close()
    for call in (store.queues, store.queue("q").stats, store.__enter__):
        with pytest.raises(Closed):
            call()


def test_a_call_from_inside_the_loop_says_that_it_would_wait_for_itself(store: alkstore.sync.Store) -> None:
    async def inside(_: object, __: object) -> None:
        store.queues()

    with pytest.raises(InvalidArgument, match="would wait for itself"):
        store._call(inside)


def test_a_portal_that_is_closed_answers_every_call_that_it_took() -> None:
    for _ in range(20):
        portal = Portal()
        answers: list[object] = []

        def call(portal: Portal = portal, answers: list[object] = answers) -> None:
            try:
                answers.append(portal.call(lambda _: asyncio.sleep(0.001, 1)))
            except Closed as error:
                answers.append(error)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        portal.close()
        for thread in threads:
            thread.join(HUNG)
        assert len(answers) == 8
        with pytest.raises(Closed):
            portal.call(lambda _: asyncio.sleep(0))


def test_who_asks_a_thread_that_does_not_wait_any_more_is_told_so() -> None:
    portal, asked = Portal(), []

    async def ask_later(bounce: Bounce) -> Bounce:
        asked.append(asyncio.ensure_future(bounce(lambda: "in time")))
        await asyncio.sleep(0)
        return bounce

    async def ask(bounce: Bounce) -> object:
        with pytest.raises(Closed):
            await bounce(lambda: "too late")
        (found,) = await asyncio.gather(*asked, return_exceptions=True)
        return found

    try:
        gone = portal.call(ask_later)
        found = portal.call(lambda _: ask(gone))
    finally:
        portal.close()

    assert found == "in time" or isinstance(found, Closed)


async def test_where_no_thread_waits_a_plain_connection_is_refused() -> None:
    portal = Portal()
    try:
        with pytest.raises(InvalidArgument, match=r"alkstore\.sync alone"):
            await PlainThread(portal).run(lambda: None)
    finally:
        portal.close()


def test_a_collection_may_find_an_ended_thread_while_another_one_tells_something() -> None:
    portal = Portal()

    def find(phase: str, info: dict[str, int]) -> None:
        portal.tell(int)  # as a finaliser does

    thresholds = gc.get_threshold()
    gc.callbacks.append(find)
    gc.set_threshold(1)
    try:
        assert all(portal.tell(int) for _ in range(1_000))
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(find)
        portal.close()


# ---------------------------------------------------------------- opening and the end


def test_what_is_wrong_is_said_before_anything_is_opened(store: alkstore.sync.Store) -> None:
    with pytest.raises(InvalidArgument, match="nosuch"):
        alkstore.sync.open("nosuch://x")
    with pytest.raises(InvalidName):
        store.queue("")
    with pytest.raises(InvalidName):
        store.stream(" ")
    with pytest.raises(InvalidArgument, match="max_attempts"):
        store.queue("q", max_attempts=0)


def test_a_store_that_cannot_be_opened_says_why_each_time(tmp_path: Path) -> None:
    store = alkstore.sync.open(f"sqlite:///{tmp_path}/missing/app.db")
    for _ in range(2):
        with pytest.raises(alkstore.AlkstoreError, match="does not exist"):
            store.queues()
    store.close()


def test_a_store_opens_at_its_first_call_and_no_sooner(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    store = alkstore.sync.open(f"sqlite:///{path}")
    queue = store.queue("q")
    assert not path.exists()
    queue.enqueue(1)
    assert path.exists()
    store.close()


def test_nothing_warns_when_everything_was_closed(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = set(threading.enumerate())
        for _ in range(3):
            with alkstore.sync.open(f"sqlite:///{tmp_path}/app.db", durability="process") as store:
                store.queue("q").enqueue(1)
        assert set(threading.enumerate()) <= before  # one of a test before may end meanwhile
