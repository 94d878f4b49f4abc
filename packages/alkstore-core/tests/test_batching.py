import asyncio
import gc
import random
import weakref
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar

import pytest
from faulty import warped
from hanging import HUNG

from alkstore.batching import MAX_BYTES, MAX_ROWS, PATIENCE, Batcher
from alkstore.engine import Ack, Fail, Heartbeat, NewEvent, NewJob, NewWake, Retry, Settle
from alkstore.errors import Closed, DatabaseError


class Storage:
    """An engine in memory whose flushes wait at a gate, before and after their commit, and fail when told to."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.flushes: list[int] = []
        self.gates: list[asyncio.Event] = []
        self.is_gated = False
        self.poison: frozenset[str] = frozenset()
        self.error: Exception | None = None
        self.tasks: list[asyncio.Task[object] | None] = []
        self._is_flushing = False

    async def _commit(self, labels: list[str]) -> range:
        assert not self._is_flushing, "two flushes of one kind ran together"
        self._is_flushing = True
        self.tasks.append(asyncio.current_task())
        try:
            await self._gate()
            if self.error is not None:
                raise self.error
            if self.poison.intersection(labels):
                raise DatabaseError("a trigger refused a row")
            first = len(self.rows)
            self.rows += labels
            self.flushes.append(len(labels))
            await self._gate()
            return range(first, first + len(labels))
        finally:
            self._is_flushing = False

    async def _gate(self) -> None:
        if self.is_gated:
            gate = asyncio.Event()
            self.gates.append(gate)
            await gate.wait()
        else:
            await asyncio.sleep(0)

    def open_gate(self) -> None:
        """Let everybody through, now and later."""
        self.is_gated = False
        for gate in self.gates:
            gate.set()

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return list(await self._commit([label(job) for job in jobs]))

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        return list(await self._commit([event.payload.decode() for event in events]))

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        await self._commit([str(settle.id) for settle in settles])
        return [settle.window if isinstance(settle, Heartbeat) else None for settle in settles]

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        await self._commit([wake.channel for wake in wakes])


def label(job: NewJob) -> str:
    return job.payload.partition(b" ")[0].decode()


def job(text: str, size: int = 0) -> NewJob:
    return NewJob("mail", text.encode() + b" " * size, b"{}", 0, None, None, 300, 3, 5, None)


async def turn(times: int = 20) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
def batcher(storage: Storage) -> Batcher:
    return Batcher(storage)


def insert(batcher: Batcher, *texts: str, size: int = 0) -> "asyncio.Task[Sequence[int]]":
    return asyncio.ensure_future(batcher.insert_jobs([job(text, size) for text in texts]))


async def finish(*tasks: "asyncio.Task[Sequence[int]]") -> list[Sequence[int] | BaseException]:
    async with asyncio.timeout(HUNG):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_call_on_an_idle_writer_is_flushed_in_its_own_task(
    storage: Storage, batcher: Batcher
) -> None:
    before = asyncio.all_tasks()

    assert list(await batcher.insert_jobs([job("a"), job("b")])) == [0, 1]

    assert storage.tasks == [asyncio.current_task()]
    assert asyncio.all_tasks() == before


async def test_what_comes_while_a_flush_runs_rides_the_next_one_in_order(
    storage: Storage, batcher: Batcher
) -> None:
    storage.is_gated = True
    first = insert(batcher, "a")
    await turn()
    later = [insert(batcher, text, text + "2") for text in "bcd"]
    await turn()
    assert storage.flushes == []

    storage.open_gate()

    assert [list(ids) for ids in await asyncio.gather(first, *later)] == [[0], [1, 2], [3, 4], [5, 6]]
    assert storage.flushes == [1, 6]
    assert storage.rows == ["a", "b", "b2", "c", "c2", "d", "d2"]


async def test_callers_that_call_again_fill_every_flush(storage: Storage, batcher: Batcher) -> None:
    async def produce(name: str) -> None:
        for at in range(10):
            await batcher.insert_jobs([job(f"{name}{at}")])

    async with asyncio.timeout(HUNG):
        await asyncio.gather(*(produce(f"p{number}-") for number in range(64)))

    assert len(storage.rows) == 640
    assert len(storage.flushes) <= 12


async def test_calls_that_come_in_company_again_and_again_share_one_flush(
    storage: Storage, batcher: Batcher
) -> None:
    for _ in range(3):
        await finish(*(insert(batcher, f"{at}") for at in range(100)))

    assert storage.flushes == [1, 99, 100, 100]


async def test_a_caller_that_is_alone_again_flushes_itself(storage: Storage, batcher: Batcher) -> None:
    await finish(*(insert(batcher, text) for text in "abc"))

    for text in "de":
        await batcher.insert_jobs([job(text)])

    assert storage.flushes == [1, 2, 1, 1]
    assert storage.tasks[-2] is not asyncio.current_task(), "nobody can know yet that d comes alone"
    assert storage.tasks[-1] is asyncio.current_task()


async def test_a_batch_is_bounded_in_rows(storage: Storage, batcher: Batcher) -> None:
    storage.is_gated = True
    tasks = [insert(batcher, *[f"{at}-{row}" for row in range(10)]) for at in range(302)]
    await turn()
    storage.open_gate()
    await finish(*tasks)

    assert storage.flushes == [10, MAX_ROWS, MAX_ROWS, MAX_ROWS, 10]
    assert storage.rows == [f"{at}-{row}" for at in range(302) for row in range(10)]


async def test_a_batch_is_bounded_in_bytes(storage: Storage, batcher: Batcher) -> None:
    storage.is_gated = True
    tasks = [insert(batcher, str(at), size=MAX_BYTES // 4) for at in range(8)]
    await turn()
    storage.open_gate()
    await finish(*tasks)

    assert storage.flushes == [1, 3, 3, 1]


async def test_the_errors_of_settles_count_among_the_bytes(storage: Storage, batcher: Batcher) -> None:
    storage.is_gated = True
    error = "x" * (MAX_BYTES // 4 + 1)
    settles: list[Settle] = [Retry("mail", at, 1, 0, error) for at in range(4)]
    settles += [Fail("mail", at, 1, error) for at in range(4, 8)]
    tasks = [asyncio.ensure_future(batcher.settle_jobs([settle])) for settle in settles]
    await turn()
    storage.open_gate()
    await asyncio.gather(*tasks)

    assert storage.flushes == [1, 3, 3, 1]


async def test_one_call_is_never_split(storage: Storage, batcher: Batcher) -> None:
    storage.is_gated = True
    many = [str(at) for at in range(5 * MAX_ROWS)]
    tasks = [insert(batcher, "a"), insert(batcher, "b"), insert(batcher, *many), insert(batcher, "c")]
    await turn()
    storage.open_gate()
    await finish(*tasks)

    assert storage.flushes == [1, 1, 5 * MAX_ROWS, 1]


async def test_an_empty_call_is_answered_without_a_flush(storage: Storage, batcher: Batcher) -> None:
    assert list(await batcher.insert_jobs([])) == []
    assert storage.flushes == []


async def test_every_kind_gives_each_caller_its_own_results(storage: Storage, batcher: Batcher) -> None:
    await batcher.notify([NewWake("orders", b"1"), NewWake("mail", None)])
    assert list(await batcher.append_events([NewEvent("s", None, b"x", b"{}")])) == [2]
    tasks = [
        asyncio.ensure_future(batcher.settle_jobs([Heartbeat("q", at, 1, at), Ack("q", at, 1)]))
        for at in range(5)
    ]

    async with asyncio.timeout(HUNG):
        assert [list(instants) for instants in await asyncio.gather(*tasks)] == [
            [at, None] for at in range(5)
        ]
    assert storage.flushes == [2, 1, 2, 8]


async def test_a_call_that_fails_its_batch_fails_alone(storage: Storage, batcher: Batcher) -> None:
    storage.is_gated = True
    storage.poison = frozenset({"bad"})
    tasks = [insert(batcher, text) for text in ("a", "b", "bad", "c")]
    await turn()
    storage.open_gate()

    a, b, bad, c = await finish(*tasks)

    assert [a, b, c] == [[0], [1], [2]]
    assert isinstance(bad, DatabaseError)
    assert storage.rows == ["a", "b", "c"]


@warped
async def test_nobody_waits_for_his_own_try_behind_one_that_took_long_to_fail() -> None:
    class Slow(Storage):
        async def _commit(self, labels: list[str]) -> range:
            if len(labels) == 1:
                await asyncio.sleep(2 * PATIENCE)
                self.flushes.append(1)
            raise DatabaseError("storage is away")

    storage = Slow()
    batcher = Batcher(storage)

    results = await finish(*[insert(batcher, text) for text in ("a", "b", "c", "d")])

    assert [str(error) for error in results] == ["storage is away"] * 4
    assert storage.flushes == [1, 1]


async def test_a_batch_of_unknown_outcome_is_not_repeated(storage: Storage, batcher: Batcher) -> None:
    storage.is_gated = True
    cause = ConnectionResetError("server gone")
    tasks = [insert(batcher, text) for text in ("a", "b", "c")]
    await turn()
    storage.error = DatabaseError("commit was not answered")
    storage.error.outcome_unknown = True
    storage.error.__cause__ = cause
    storage.open_gate()

    results = await finish(*tasks)

    assert len(storage.tasks) == 2  # the first call's own flush, and one of the other two
    assert all(isinstance(error, DatabaseError) and error.outcome_unknown for error in results)
    assert all(isinstance(error, DatabaseError) and error.__cause__ is cause for error in results)
    assert len({id(error) for error in results}) == 3
    assert storage.rows == []


async def test_an_error_that_is_nobodys_fault_reaches_everybody_and_the_writer_goes_on(
    storage: Storage, batcher: Batcher
) -> None:
    storage.is_gated = True
    storage.error = Closed("store")
    tasks = [insert(batcher, text) for text in ("a", "b", "c")]
    await turn()
    storage.open_gate()

    assert [type(result) for result in await finish(*tasks)] == [Closed, Closed, Closed]
    storage.error = None
    assert list(await batcher.insert_jobs([job("d")])) == [0]


async def test_nobody_waits_anew_behind_who_was_held_back_for_too_long(
    storage: Storage, batcher: Batcher
) -> None:
    storage.is_gated = True
    storage.error = DatabaseError("storage was held by open transaction 1")
    storage.error._is_held_back = True
    calls = [asyncio.ensure_future(batcher.insert_jobs([job(str(n))])) for n in range(5)]
    await asyncio.sleep(0)

    storage.gates[0].set()
    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert [str(answer) for answer in answers] == [str(storage.error)] * 5
    assert len(storage.gates) == 1
    storage.error = None
    storage.open_gate()
    assert await batcher.insert_jobs([job("next")]) == [0]


async def test_a_caller_cancelled_in_line_has_done_nothing(storage: Storage, batcher: Batcher) -> None:
    storage.is_gated = True
    tasks = [insert(batcher, text) for text in ("a", "b", "c")]
    await turn()
    tasks[1].cancel()
    storage.open_gate()
    await finish(*tasks)

    assert tasks[1].cancelled()
    assert storage.rows == ["a", "c"]


async def test_a_caller_cancelled_during_its_flush_takes_nobody_along(
    storage: Storage, batcher: Batcher
) -> None:
    storage.is_gated = True
    tasks = [insert(batcher, text) for text in ("a", "b", "c")]
    await turn()
    storage.gates[0].set()
    await turn()
    storage.gates[1].set()
    await turn()
    assert storage.flushes == [1]
    tasks[1].cancel()
    await turn()
    assert tasks[1].cancelled()

    storage.open_gate()
    await finish(*tasks)

    assert [list(tasks[0].result()), list(tasks[2].result())] == [[0], [2]]
    assert storage.rows == ["a", "b", "c"]


async def test_the_caller_that_runs_the_flush_may_be_cancelled_without_harm_to_those_in_line(
    storage: Storage, batcher: Batcher
) -> None:
    storage.is_gated = True
    tasks = [insert(batcher, text) for text in ("a", "b", "c")]
    await turn()
    tasks[0].cancel()
    storage.open_gate()
    await finish(*tasks)

    assert tasks[0].cancelled()
    assert storage.rows == ["b", "c"]
    assert [list(tasks[1].result()), list(tasks[2].result())] == [[0], [1]]


async def test_a_writer_whose_whole_line_was_cancelled_is_idle_again(
    storage: Storage, batcher: Batcher
) -> None:
    storage.is_gated = True
    tasks = [insert(batcher, text) for text in ("a", "b", "c")]
    await turn()
    for task in tasks:
        task.cancel()
    await finish(*tasks)
    storage.open_gate()
    await turn()

    assert list(await batcher.insert_jobs([job("d")])) == [0]
    assert storage.tasks[-1] is asyncio.current_task()


async def test_a_thousand_random_cancellations_lose_and_strand_nothing(
    storage: Storage, batcher: Batcher
) -> None:
    choice = random.Random(20)
    storage.poison = frozenset(f"t{at}" for at in range(0, 3_000, 97))
    tasks: dict[str, asyncio.Task[Sequence[int]]] = {}
    cancelled: set[str] = set()
    async with asyncio.timeout(HUNG):
        for at in range(3_000):
            tasks[f"t{at}"] = insert(batcher, f"t{at}", *(f"t{at}+" for _ in range(choice.randrange(3))))
            if choice.random() < 0.3:
                await turn(choice.randrange(1, 4))
            if len(cancelled) < 1_000 and choice.random() < 0.6:
                open_names = [name for name, task in list(tasks.items())[-60:] if not task.done()]
                for name in choice.sample(open_names, min(len(open_names), 3)):
                    cancelled.add(name)
                    tasks[name].cancel()
        await asyncio.wait(tasks.values())

    assert len(cancelled) >= 1_000
    landed = Counter(storage.rows)
    for name, task in tasks.items():
        if task.cancelled():
            assert name in cancelled
            assert landed[name] <= 1
        elif name in storage.poison:
            assert isinstance(task.exception(), DatabaseError)
            assert landed[name] == 0
        else:
            assert [storage.rows[row].removesuffix("+") for row in task.result()] == [name] * len(
                task.result()
            )
            assert landed[name] == 1
    assert list(await batcher.insert_jobs([job("end")])) == [len(storage.rows) - 1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_line_keeps_no_callers_context_alive(storage: Storage, batcher: Batcher) -> None:
    class Transaction: ...

    current: ContextVar[Transaction] = ContextVar("current")
    gone: list[weakref.ref[Transaction]] = []

    async def call() -> None:
        transaction = Transaction()
        gone.append(weakref.ref(transaction))
        current.set(transaction)
        await batcher.insert_jobs([job("a")])

    storage.is_gated = True
    first = asyncio.ensure_future(call())
    await turn()
    other = insert(batcher, "b")
    await turn()
    for gate in range(2):
        storage.gates[gate].set()
        await turn()
    assert first.done()
    del first
    storage.tasks.clear()
    gc.collect()

    assert gone[0]() is None
    storage.open_gate()
    await finish(other)


async def test_closing_lets_what_was_accepted_finish_and_refuses_the_rest(
    storage: Storage, batcher: Batcher
) -> None:
    storage.is_gated = True
    tasks = [insert(batcher, text) for text in ("a", "b", "c")]
    await turn()
    closing = asyncio.ensure_future(batcher.close())
    await turn()
    with pytest.raises(Closed):
        await batcher.insert_jobs([job("d")])
    with pytest.raises(Closed):
        await batcher.notify([NewWake("c", None)])
    assert not closing.done()

    storage.open_gate()
    async with asyncio.timeout(HUNG):
        await closing

    assert [list(task.result()) for task in tasks] == [[0], [1], [2]]
    await batcher.close()


async def test_closing_an_idle_writer_ends_at_once(batcher: Batcher) -> None:
    async with asyncio.timeout(HUNG):
        await asyncio.gather(batcher.close(), batcher.close())


async def test_closing_gives_up_after_its_limit_and_tells_each_caller_what_is_known(
    storage: Storage, batcher: Batcher
) -> None:
    storage.is_gated = True
    tasks = [insert(batcher, "a"), insert(batcher, "b")]
    await turn()
    for gate in storage.gates * 2:
        gate.set()
    await turn()
    storage.gates[-1].set()
    await turn()
    assert storage.flushes == [1]
    tasks.append(insert(batcher, "c"))
    await turn()

    async with asyncio.timeout(HUNG):
        await batcher.close(limit=0.01)
        a, b, c = await finish(*tasks)

    assert a == [0]
    assert isinstance(b, DatabaseError)
    assert b.outcome_unknown
    assert isinstance(c, Closed)
    assert asyncio.all_tasks() == {asyncio.current_task()}
