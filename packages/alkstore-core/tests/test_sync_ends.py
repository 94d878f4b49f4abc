"""Plain handlers that end as few do, and calls that are interrupted before they have begun."""

import asyncio
import contextvars
from collections.abc import Iterator

import pytest
from hanging import HUNG

import alkstore.sync
from alkstore.sync.portal import Bounce, Portal, _Answer, _Job, _Line


@pytest.fixture
def store() -> Iterator[alkstore.sync.Store]:
    with alkstore.sync.open("mem://") as opened:
        yield opened


def test_a_handler_that_raises_stop_iteration_has_failed_and_keeps_nobody_waiting(
    store: alkstore.sync.Store,
) -> None:
    store.queue("q").enqueue(1)

    def handler(handle: object) -> object:
        return next(iter(()))

    assert store.queue("q").run_once(handler)
    (job,) = store.queue("q").list()
    assert (job.retry_error or "").startswith("builtins.RuntimeError: the function raised StopIteration")


def test_a_handler_that_leaves_the_program_gives_its_job_back(store: alkstore.sync.Store) -> None:
    store.queue("q").enqueue(1)

    def handler(handle: object) -> object:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        store.queue("q").run_once(handler)
    assert store.queue("q").stats().ready == 1


def test_a_call_that_is_interrupted_before_it_begins_does_not_begin_and_the_next_one_does() -> None:
    portal, begun = Portal(), []

    async def work(_: Bounce) -> None:
        begun.append(1)
        await asyncio.Event().wait()

    async def ends(_: Bounce) -> int:
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    line, job, next_job = _Line(portal), _Job(work, contextvars.Context()), _Job(ends, contextvars.Context())

    def at_once() -> None:  # in one turn of the loop what the calling thread tells it in two
        line._submit(job)
        line._interrupt(job)
        line._submit(next_job)

    portal.tell(at_once)
    first, second = job.answers.get(timeout=HUNG), next_job.answers.get(timeout=HUNG)
    portal.tell(line.end)
    portal.close()

    assert isinstance(first, _Answer)
    assert isinstance(first.error, asyncio.CancelledError)
    assert (begun, second) == ([], _Answer(0))
