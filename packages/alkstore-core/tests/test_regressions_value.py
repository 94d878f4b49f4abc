"""Faults that were found in the read-only values and in what opens once, and stay found."""

import asyncio
import copy
import logging
import pickle
from collections.abc import Callable
from unittest.mock import ANY

import msgspec
import pytest

import alkstore
from alkstore import InvalidArgument, Lock, Store, Tx
from alkstore_mem import MemStore


async def test_a_value_lets_another_type_decide_whether_it_is_equal() -> None:
    async with MemStore() as store:
        id = await store.queue("q").enqueue(1)

        job = await store.queue("q").get_job(id)

    of_another_type: object = id
    assert job == ANY
    assert job != of_another_type


async def test_the_repr_of_a_value_shows_its_instants_whole_and_cuts_its_payload() -> None:
    async with MemStore() as store:
        id = await store.queue("q").enqueue("x" * 1_000)

        job = await store.queue("q").get_job(id)

    assert job is not None
    assert f"run_at={job.run_at!r}, attempts" in repr(job)
    assert len(repr(job)) < 400


async def test_a_value_is_shown_by_rich_as_by_itself_and_not_encoded_by_msgspec() -> None:
    async with MemStore() as store:
        await store.queue("q").enqueue("x" * 1_000)

        job = await store.queue("q").claim_one()

    assert job is not None
    shown = ", ".join(f"{name}={value!r}" for name, value in job.job.__rich_repr__())
    assert f"Job({shown})" == repr(job.job)
    with pytest.raises(TypeError, match="unsupported"):
        msgspec.json.encode(job.job)


async def test_a_value_is_copied_and_pickled_whole() -> None:
    async with MemStore() as store:
        queue, stream = store.queue("q"), store.stream("s")
        await queue.enqueue({"to": "ada"}, headers={"trace": "1"})
        await stream.publish([1, 2], key="k")
        await store.schedule("nightly", "@every 1d", "q", None)

        jobs, events, schedules = await queue.list(), await stream.read_since(0), await store.schedules()

    values: list[object] = [*jobs, *events, *schedules]
    assert len(values) == 3
    assert schedules[0].payload_bytes == b"null"
    assert pickle.loads(pickle.dumps(values)) == values
    assert copy.deepcopy(values) == values
    assert len({*values, *copy.deepcopy(values)}) == 3


@pytest.mark.parametrize("kind", ["lock", "transaction"])
async def test_what_opens_once_is_refused_to_a_second_task_while_the_first_one_opens_it(kind: str) -> None:
    opens: dict[str, Callable[[Store], object]] = {
        "lock": lambda store: store.lock("l"),
        "transaction": lambda store: store.begin_tx(),
    }
    async with MemStore() as store:
        context = opens[kind](store)

        async def enter() -> None:
            async with context as opened:  # type: ignore[attr-defined]  # either kind
                assert isinstance(opened, (Lock, Tx))
                await asyncio.sleep(0)

        ends = await asyncio.gather(enter(), enter(), return_exceptions=True)

        assert [type(end) for end in ends] == [type(None), InvalidArgument]


@pytest.mark.parametrize("kind", ["lock", "transaction"])
async def test_what_was_awaited_is_not_entered_or_awaited_again(kind: str) -> None:
    async with MemStore() as store:
        context = store.lock("l") if kind == "lock" else store.begin_tx()
        opened = await context
        with pytest.raises(InvalidArgument, match="again"):
            await context
        with pytest.raises(InvalidArgument, match="again"):
            async with context:
                pass
        await (opened.release() if isinstance(opened, Lock) else opened.rollback())


def test_a_store_that_is_refused_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "alkstore"), pytest.raises(InvalidArgument, match="nothing after"):
        _ = alkstore.open("mem://name")

    assert caplog.records == []
