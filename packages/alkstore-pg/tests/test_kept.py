import asyncio

import pytest

from alkstore_pg.kept import Kept

Left = list[asyncio.Future[int]]


class Work:
    """Waits for two futures one after the other, and gives the sum of what they give."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.steps: list[asyncio.Future[int]] = [loop.create_future(), loop.create_future()]
        self.has_begun = False

    async def run(self) -> int:
        self.has_begun = True
        await asyncio.sleep(0)
        return sum([await step for step in self.steps])

    def end(self) -> None:
        for step in self.steps:
            step.set_result(1)


async def caller(work: Work, left: Left) -> int:
    return await Kept(work.run(), left.append)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_comes_of_it_is_given_to_who_awaits_it() -> None:
    work, left = Work(), Left()
    calling = asyncio.ensure_future(caller(work, left))
    await turns(1)

    assert work.has_begun
    work.end()

    assert await calling == 2
    assert left == []


async def test_what_ends_at_once_is_not_waited_for() -> None:
    async def none() -> int:
        return 7

    left = Left()
    turn = asyncio.get_running_loop().call_soon(left.append, asyncio.get_running_loop().create_future())

    assert await Kept(none(), left.append) == 7
    assert left == []
    turn.cancel()


async def test_an_error_is_raised_where_it_is_awaited() -> None:
    work = Work()
    calling = asyncio.ensure_future(caller(work, Left()))
    await turns()
    work.steps[0].set_exception(OSError("lost"))

    with pytest.raises(OSError, match="lost"):
        await calling


async def test_who_is_cancelled_goes_at_once_and_the_work_goes_on() -> None:
    work, left = Work(), Left()
    calling = asyncio.ensure_future(caller(work, left))
    await turns()

    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not left[0].done()
    work.end()
    await turns()

    assert left[0].result() == 2


@pytest.mark.parametrize("before", range(6))
async def test_a_cancellation_in_any_turn_loses_no_answer(before: int) -> None:
    work, left = Work(), Left()
    calling = asyncio.ensure_future(caller(work, left))
    await turns()
    work.end()
    await turns(before)

    calling.cancel()
    await asyncio.wait([calling])
    await turns()

    given = left[0] if calling.cancelled() else calling
    assert given.result() == 2


async def test_the_error_of_what_nobody_awaits_any_more_is_given_to_who_took_it_over() -> None:
    work, left = Work(), Left()
    calling = asyncio.ensure_future(caller(work, left))
    await turns()
    calling.cancel()
    work.steps[0].set_exception(OSError("lost"))
    await asyncio.wait([calling])
    await turns()

    assert calling.cancelled()
    assert isinstance(left[0].exception(), OSError)


async def test_what_is_cancelled_itself_is_cancelled_where_it_is_awaited() -> None:
    work = Work()
    calling = asyncio.ensure_future(caller(work, Left()))
    await turns()

    work.steps[0].cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling
