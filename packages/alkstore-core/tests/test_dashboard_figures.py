"""The figures over time: told to who points at a chart, and as a table; and what is known of queues beyond the first ones."""

import asyncio
import re
from typing import Any

import pytest
from dashboards import Viewer, shown
from faulty import FaultyStore, warped

from alkstore.dashboard import chart, live, look
from alkstore.dashboard.history import FINE


def drawn(*lines: list[tuple[float, float]], now: float = 48.0) -> chart.Chart:
    named = [chart.Line(f"line {number}", "ready", points) for number, points in enumerate(lines)]
    return chart.chart(named, FINE, now)


def test_a_chart_is_told_in_slices_each_by_its_last_look() -> None:
    found = drawn(
        [(0.0, 1.0), (1.0, 2.0), (20.0, 3.0), (60.0, 4.0)], [(0.0, 0.0), (1.0, 5.0), (20.0, 6.0), (60.0, 7.0)],
        now=60.0,
    )  # fmt: skip

    assert found.slices == [
        chart.Slice(0.0, 25.0, 1.0, [2.0, 5.0]),
        chart.Slice(200.0, 25.0, 20.0, [3.0, 6.0]),
        chart.Slice(575.0, 25.0, 60.0, [4.0, 7.0]),
    ]


def test_what_was_not_known_is_told_as_that_and_nothing_where_nobody_looked() -> None:
    assert drawn([(0.0, float("nan"))]).slices[0].values == [None]
    assert drawn([]).slices == drawn().slices == []
    assert drawn([(at * 2.0, 1.0) for at in range(450)], now=900.0).slices[0].at == 36.0


async def test_who_points_at_a_chart_is_told_its_values_without_a_script() -> None:
    async with shown() as board:
        await board.store.queue("mail").enqueue_batch(range(1_234))
        page = await board.page("/queue?name=mail")
        at = board.clock.now() // 1_000_000

    titles = re.findall(r"<title>([^<]*)</title></rect>", page)
    assert titles[0] == f"{_time(at)}: ready 1,234, processing 0, delayed 0"
    assert len(titles) == 4


async def test_the_figures_are_shown_as_a_table_too() -> None:
    async with shown() as board:
        await board.store.queue("mail").enqueue_batch(range(7))
        await board.page("/")
        await board.clock.advance(10)
        await board.store.queue("mail").enqueue(1)
        at = board.clock.now() // 1_000_000
        words = await board.words("/queue?name=mail&as=table")
        page = await board.page("/queue?name=mail&as=table&span=6h")

    assert f"At ready processing delayed {_time(at)} 8 0 0 {_time(at - 10)} 7 0 0" in words
    assert "<svg" not in page
    assert re.search(r'href="[^"]*span=15min&amp;as=table"', page)
    assert re.search(r'href="[^"]*span=6h&amp;as=charts"', page)


async def test_no_other_shape_is_there() -> None:
    async with shown() as board:
        assert "as must be one of charts, table" in await board.words("/queue?name=q&as=pie", 400)


def _time(at: int) -> str:
    hours, rest = divmod(at % 86_400, 3_600)
    return f"{hours:02}:{rest // 60:02}:{rest % 60:02}Z"


# ---------------------------------------------------------------- more queues than are looked at


async def test_a_queue_that_is_not_looked_at_any_more_is_not_shown_as_empty() -> None:
    async with shown(write=True) as board:
        for number in range(look.MOST):
            await board.store.queue(f"q{number:04}").enqueue(1)
        before = await board.words("/queue?name=q0199")
        await board.store.queue("a").enqueue(1)
        queues = await board.words("/")
        after = await board.words("/queue?name=q0199")

    assert "Ready 1" in before
    assert "q0199" not in queues
    assert "there are no figures of it" in after
    assert "Ready 0" not in after
    assert "1 job by id" in after
    assert "All dead jobs" in after


# ---------------------------------------------------------------- viewers


class Asleep(Viewer):
    """One who has a page open and takes nothing in, as a machine does that sleeps."""

    async def _send(self, message: Any) -> None:
        await super()._send(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()


@warped
async def test_a_viewer_who_takes_nothing_in_is_given_up_and_is_not_looked_for() -> None:
    async with shown(interval=2.0, faulty=FaultyStore()) as board:
        running = asyncio.create_task(Asleep(board.made, "/", "").run())
        await asyncio.sleep(live.LASTING + live.PATIENCE + 1)
        is_looking = board.made._site.look.is_looking

        assert (running.done(), is_looking) == (True, False)


@warped
async def test_what_was_changed_while_a_look_was_under_way_is_looked_at_anew() -> None:
    store = FaultyStore()
    async with shown(interval=60.0, write=True, faulty=store) as board:
        await board.dead("q", "no route")
        gate = store.wire.hang_answers("list_schedules")
        page = asyncio.create_task(board.page("/"))
        await asyncio.sleep(1)
        board.made._site.look.forget()  # as redriving and purging do
        gate.set()
        await page
        looks = store.wire.calls["list_names"]
        await board.page("/")

        assert store.wire.calls["list_names"] == looks + 1


@pytest.mark.parametrize("path", ["/", "/queue?name=q", "/streams"])
async def test_a_head_request_ends_though_it_takes_events(path: str) -> None:
    async with shown() as board:
        answer = await board.client.head(path, headers={"accept": "text/event-stream"})

    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")


async def test_by_another_method_one_is_told_by_which() -> None:
    async with shown() as board:
        answer = await board.client.request("OPTIONS", "/", headers={"origin": "http://localhost"})

    assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
