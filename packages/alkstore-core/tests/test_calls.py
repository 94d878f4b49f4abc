import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hanging import HUNG

from alkstore import Closed, DatabaseError
from alkstore.calls import CIRCLE, HELD, Calls


class DriverError(Exception):
    pass


class Refusal(DriverError):
    pass


async def nothing() -> None:
    pass


class Storage:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.open = asyncio.Event()

    async def ask(self, answer: object = None) -> object:
        self.asked += 1
        await self.open.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
async def calls() -> AsyncIterator[Calls]:
    made = Calls(2, 30, "toy", (DriverError, OSError), (Refusal,))
    yield made
    await made.aclose(nothing)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(HUNG):
        while not is_so():  # noqa: ASYNC110  # any turn may bring it about
            await asyncio.sleep(0)


async def refused(call: Awaitable[object]) -> DatabaseError:
    with pytest.raises(DatabaseError) as caught:
        await call
    return caught.value


async def test_no_more_calls_are_under_way_than_are_allowed(calls: Calls, storage: Storage) -> None:
    waiting = [asyncio.create_task(calls.run(storage.ask, number)) for number in range(5)]
    await until(lambda: calls.in_hand == 5)
    under_way = storage.asked
    storage.open.set()

    assert (under_way, await asyncio.gather(*waiting), calls.in_hand, calls.done) == (
        2,
        [0, 1, 2, 3, 4],
        0,
        5,
    )


async def test_a_call_outlives_its_caller(calls: Calls, storage: Storage) -> None:
    caller = asyncio.create_task(calls.run(storage.ask))
    await until(lambda: storage.asked == 1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    left = calls.in_hand
    storage.open.set()
    await until(lambda: calls.done == 1)

    assert left == 1


@pytest.mark.parametrize(
    ("error", "is_unknown"), [(Refusal("no"), False), (DriverError("no"), True), (OSError("no"), True)]
)
async def test_a_drivers_error_becomes_ours_and_says_whether_it_may_have_landed(
    calls: Calls, storage: Storage, error: Exception, is_unknown: bool
) -> None:
    storage.open.set()

    seen = await refused(calls.run(storage.ask, error))

    assert (str(seen), seen.__cause__, seen.outcome_unknown) == ("toy: no", error, is_unknown)


async def test_an_error_without_a_text_is_named_and_another_is_no_ones_to_translate(
    calls: Calls, storage: Storage
) -> None:
    storage.open.set()

    assert str(await refused(calls.run(storage.ask, Refusal()))) == "toy: Refusal"
    with pytest.raises(ZeroDivisionError):
        await calls.run(storage.ask, ZeroDivisionError())


async def test_a_storage_that_is_silent_is_waited_for_so_long_and_no_longer(storage: Storage) -> None:
    calls = Calls(1, 0.001, "toy", (), ())

    async with asyncio.timeout(HUNG):
        seen = await refused(calls.run(storage.ask))
    await calls.aclose(nothing)

    assert (str(seen), seen.outcome_unknown, calls.in_hand) == ("toy: TimeoutError", True, 0)


async def test_what_is_held_is_asked_for_until_it_is_free(calls: Calls) -> None:
    answers = iter([HELD, HELD, "free"])

    async def ask() -> str:
        return next(answers)

    assert await calls.run_when_free(lambda: "it", ask) == "free"


@pytest.mark.parametrize(
    ("answer", "wait_timeout", "text"),
    [
        (HELD, 0.02, "the place was held by another transaction for over 0.02 s"),
        (CIRCLE, 30, "the place is held by a transaction that waits for this one; begin this one again"),
    ],
)
async def test_what_is_not_to_be_had_is_said_by_name(answer: str, wait_timeout: float, text: str) -> None:
    calls = Calls(1, wait_timeout, "toy", (), ())

    async def ask() -> str:
        return answer

    seen = await refused(calls.run_when_free(lambda: "the place", ask))
    await calls.aclose(nothing)

    assert (str(seen), seen.outcome_unknown, seen._is_held_back) == (text, False, True)


async def test_the_close_cuts_off_what_is_under_way_and_refuses_what_stands_in_line(storage: Storage) -> None:
    calls = Calls(1, 30, "toy", (DriverError,), ())
    running = asyncio.create_task(calls.run(storage.ask, DriverError("cut")))
    await until(lambda: storage.asked == 1)
    in_line = asyncio.create_task(calls.run(storage.ask))
    await until(lambda: calls.in_hand == 2)

    async def cut() -> None:
        storage.open.set()

    await calls.aclose(cut)

    assert str(await refused(running)) == "toy: cut"
    for late in (in_line, calls.run(storage.ask)):
        with pytest.raises(Closed):
            await late


async def test_a_call_that_the_cut_does_not_end_is_cancelled_and_its_outcome_unknown(
    storage: Storage,
) -> None:
    calls = Calls(1, 30, "toy", (), ())
    running = asyncio.create_task(calls.run(storage.ask))
    await until(lambda: storage.asked == 1)

    await calls.aclose(nothing)

    assert (await refused(running)).outcome_unknown


async def test_a_finaliser_can_leave_a_call_in_another_thread(calls: Calls, storage: Storage) -> None:
    storage.open.set()

    await asyncio.to_thread(calls.leave, storage.ask, DriverError("nobody sees it"))
    await until(lambda: calls.done == 1)
    gc.collect()  # an error that nobody awaits must not be a warning

    assert storage.asked == 1


async def test_a_call_that_is_left_after_the_close_is_not_made(storage: Storage) -> None:
    calls = Calls(1, 30, "toy", (), ())
    await calls.aclose(nothing)

    calls.leave(storage.ask)
    for _ in range(5):
        await asyncio.sleep(0)

    assert storage.asked == 0
