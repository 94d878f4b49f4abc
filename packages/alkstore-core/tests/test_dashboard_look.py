"""What the dashboard costs, what it keeps, and what it draws."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from dashboards import Shown, shown, watching
from faulty import FaultyStore, turn, warped
from hanging import HUNG

from alkstore.dashboard import Witness, chart, live, look
from alkstore.dashboard.history import COARSE, FINE, History, Point, Track
from alkstore.dashboard.live import event
from alkstore.engine import Engine
from alkstore.observing import Destination, Fact, JobsEnqueued, ListenerChanged


@pytest.fixture
async def board() -> AsyncIterator[Shown]:
    async with shown(interval=0.02) as found:
        await found.store.queue("mail").enqueue_batch(range(3))
        yield found


# ---------------------------------------------------------------- cost


async def test_nothing_is_read_before_somebody_looks_and_nothing_after(board: Shown) -> None:
    site = board.made._site
    before = site.look.seen.at

    async with watching(board.made) as viewer:
        for _ in range(3):
            await viewer.hear()
        during = site.look.is_looking
    after = site.look.is_looking

    assert (before, during, after) == (0.0, True, False)


@warped
async def test_ten_viewers_cost_no_more_than_one_and_nobody_costs_nothing() -> None:
    store = FaultyStore()
    async with shown(interval=2.0, faulty=store) as board, asyncio.TaskGroup() as group:
        await store.queue("mail").enqueue(1)
        calls, stop = store.wire.calls, asyncio.Event()
        for path in ["/", "/streams", "/queue?name=mail", "/locks", "/schedules"] * 2:
            group.create_task(_watch(board, path, stop))
        for _ in range(29):
            await asyncio.sleep(1)
            await board.page("/")
        looks = {name: calls[name] for name in ("list_names", "count_jobs", "list_locks", "list_schedules")}
        stop.set()
        await asyncio.sleep(60)

        assert looks == {"list_names": 15, "count_jobs": 15, "list_locks": 15, "list_schedules": 15}
        assert calls["list_names"] == 15


async def _watch(board: Shown, path: str, stop: asyncio.Event) -> None:
    async with watching(board.made, path) as viewer:
        await viewer.hear()
        await stop.wait()


async def test_a_look_at_many_queues_reads_the_first_ones_and_says_so() -> None:
    async with shown() as board:
        for number in range(look.MOST + 3):
            await board.store.queue(f"q{number:04}").enqueue(1)

        words = await board.words("/")

    assert "3 more queues or streams are not looked at" in words
    assert "q0199" in words
    assert "q0200" not in words


@warped
async def test_a_look_takes_a_tenth_of_the_time_at_most() -> None:
    store = FaultyStore()
    async with shown(interval=2.0, faulty=store) as board:
        gate = store.wire.hang("list_names")
        asyncio.get_running_loop().call_later(2, gate.set)
        async with watching(board.made) as viewer:
            await asyncio.sleep(2 + 17)
            early = store.wire.calls["list_names"]
            await asyncio.sleep(1.1)

        assert (early, store.wire.calls["list_names"]) == (1, 2)
        assert viewer.ended.is_set()


@warped
async def test_a_look_that_hangs_is_given_up_and_said_so() -> None:
    store = FaultyStore()
    async with shown(faulty=store) as board:
        store.wire.hang("list_names")

        assert "a look took longer than 10 s" in await board.words("/")


# ---------------------------------------------------------------- live


async def test_a_viewer_hears_of_every_look(board: Shown) -> None:
    async with watching(board.made) as viewer:
        first = await viewer.hear()
        await board.store.queue("mail").enqueue(1)
        async with asyncio.timeout(HUNG):
            while "<dd>4</dd>" not in (second := await viewer.hear()):
                pass

    assert first.startswith(f"retry: {live.AGAIN}\n\ndata: ")
    assert second.endswith("\n\n")
    assert "<html" not in second


async def test_a_viewer_is_let_go_when_the_dashboard_ends(board: Shown) -> None:
    async with watching(board.made) as viewer:
        await viewer.hear()
        board.made.end()
        async with asyncio.timeout(HUNG):
            await viewer.ended.wait()

    assert not board.made._site.look.is_looking


async def test_a_viewer_of_what_is_no_queue_is_refused(board: Shown) -> None:
    async with watching(board.made, "/queue?name=") as viewer:
        await viewer.hear()

    assert viewer.status == 400


@warped
async def test_a_viewer_hears_that_the_storage_is_away_and_that_it_is_back() -> None:
    store = FaultyStore()
    async with shown(interval=2.0, faulty=store) as board, watching(board.made) as viewer:
        await viewer.hear()
        store.wire.refusing["list_names"] = 1
        told = [await viewer.hear() for _ in range(3)]

    assert ["list_names failed" in each for each in told] == [True, False, False]


@warped
async def test_an_answer_that_goes_on_ends_by_itself_and_is_asked_for_again() -> None:
    async with shown(interval=2.0, faulty=FaultyStore()) as board, watching(board.made) as viewer:
        await asyncio.sleep(live.LASTING - 0.1)
        before = viewer.ended.is_set()
        await asyncio.sleep(0.2)

        assert (before, viewer.ended.is_set()) == (False, True)


@pytest.mark.parametrize("text", ["a\n\nevent: x", "a\r\rdata: b", "a\r\n\r\n", "", "a\x85\u2028b"])
def test_no_text_can_begin_another_event(text: str) -> None:
    told = event(text).decode()

    assert re.fullmatch(r"(data: [^\r\n]*\n)+\n", told)


# ---------------------------------------------------------------- what is kept


def test_a_track_keeps_every_look_of_minutes_and_one_a_minute_of_hours() -> None:
    track = Track(1)
    for at in range(0, 8 * 3_600, 2):
        track.add(float(at), (float(at),))

    fine, coarse = track.points(FINE), track.points(COARSE)

    assert (len(fine), fine[-1].at - fine[0].at) == (450, 898)
    assert (len(coarse), coarse[-1].at - coarse[0].at) == (361, 359 * 60 + 58)
    assert track.last == fine[-1] == coarse[-1] == Point(28_798.0, (28_798.0,))
    assert track.change(0, 60) == 1.0


def test_a_clock_that_is_set_back_begins_anew() -> None:
    track = Track(1)
    track.add(1_000.0, (1.0,))
    track.add(10.0, (2.0,))

    assert track.points(FINE) == [Point(10.0, (2.0,))]


def test_no_rate_is_made_of_one_look_or_of_nothing() -> None:
    track = Track(1)
    rates = [track.change(0, 60)]
    for at, value in ((0.0, 5.0), (1.0, 6.0), (10.0, math.nan)):
        track.add(at, (value,))
        rates.append(track.change(0, 60))

    assert rates[:3] == [None, None, None]
    assert rates[3] is not None
    assert math.isnan(rates[3])


def test_a_history_forgets_what_is_gone_and_has_an_end() -> None:
    history: History[str] = History(1, 3)
    for name in ("a", "b", "c", "a", "d"):
        history.add(name, 0.0, (1.0,))
    kept = list(history)
    history.fade("a", COARSE.seconds, (0.0,))
    still = list(history)
    history.fade("a", COARSE.seconds + 1, (0.0,))

    assert kept == still == ["c", "a", "d"]
    assert list(history) == ["c", "d"]
    assert history.track("a").last is None


def test_a_witness_counts_by_queue_and_knows_the_listener() -> None:
    witness = Witness()
    mail = Destination("queue", "mail")
    facts: Sequence[Fact] = [
        JobsEnqueued(destination=mail, ids=[1, 2], seconds=0.0),
        ListenerChanged(is_connected=False, reason="gone"),
    ]
    before = witness.has_heard, witness.listening
    for fact in facts:
        witness(fact)
    for number in range(2_000):
        witness(JobsEnqueued(destination=Destination("queue", str(number)), ids=[1], seconds=0.0))

    assert before == (False, None)
    assert witness.totals(mail).enqueued == 2
    assert witness.listening == (False, "gone")
    assert len(witness._totals) == 1_000


class Reporting(FaultyStore):
    """A store whose engine tells of its listener, once somebody waits."""

    async def _connected(self) -> Engine:
        self.mem.report_listener = self._report  # type: ignore[attr-defined]
        return await super()._connected()

    def _report(self, report: Callable[[str | None], object]) -> None:
        self.report = report


@warped
async def test_somebody_waits_while_somebody_looks_or_no_engine_would_listen() -> None:
    store, witness = Reporting(), Witness()
    store._observe([witness])
    async with shown(faulty=store, witness=witness) as board:
        before = await board.words("/"), len(store.open_watches)
        async with watching(board.made) as viewer:
            await viewer.hear()
            await turn()
            during = store.open_watches
            store.report("connection reset")
            lost = await board.words("/")
        await turn()

        assert "Listener not known" in before[0]
        assert (before[1], [topic.name for topic in during]) == (0, ["__alkstore_dashboard"])
        assert "The listener is lost. Who waits polls meanwhile. connection reset" in lost
        assert store.open_watches == []


async def test_a_lost_listener_is_shown() -> None:
    async with shown() as board:
        quiet = await board.words("/")
        board.witness(ListenerChanged(is_connected=True, reason=None))
        well = await board.words("/")
        board.witness(ListenerChanged(is_connected=False, reason="connection reset"))
        lost = await board.words("/")

    assert "Listener not needed" in quiet
    assert "Listener connected" in well
    assert "The listener is lost. Who waits polls meanwhile. connection reset" in lost


# ---------------------------------------------------------------- what is drawn


def drawn(*values: float, step: float = 2.0) -> chart.Chart:
    points = [(at * step, value) for at, value in enumerate(values)]
    return chart.chart([chart.Line("ready", "ready", points)], FINE, points[-1][0])


def test_a_line_goes_from_its_first_point_to_now() -> None:
    found = drawn(*range(31))

    assert (found.covered, found.top, found.bottom, found.zero) == (60.0, 50.0, 0.0, 120.0)
    assert found.lines[0].path.startswith("M0 120L20 117.6L")
    assert found.lines[0].path.endswith("L600 48")
    assert found.lines[0].area.endswith("L600 120Z")
    assert found.summary == "now: ready 30"


def test_what_changes_both_ways_has_its_zero_in_the_middle() -> None:
    found = drawn(-3.0, 3.0)

    assert (found.top, found.bottom, found.zero) == (5.0, -5.0, 60.0)


def test_a_line_is_broken_where_nobody_looked_and_where_there_was_nothing() -> None:
    points = [(0.0, 1.0), (2.0, 1.0), (30.0, 1.0), (32.0, math.nan), (34.0, 1.0), (36.0, 1.0)]
    (line,) = chart.chart([chart.Line("", "ready", points)], FINE, 60.0).lines

    assert [part.count("L") for part in line.path.split("M")[1:]] == [1, 1, 1]


def test_many_points_are_thinned_and_a_peak_of_one_look_stays() -> None:
    values = [1.0] * 450
    values[200] = 900.0
    found = drawn(*values)

    assert found.top == 1_000.0
    assert len(re.findall(r"[ML]", found.lines[0].path)) <= chart.COLUMNS + 1


def test_without_any_look_there_is_a_chart_without_lines() -> None:
    found = chart.chart([chart.Line("ready", "ready", [])], FINE, 0.0)

    assert (found.lines[0].path, found.top, found.summary) == ("", 1.0, "now: ready unknown")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (9_999, "9,999"), (10_000, "10k"), (12_345, "12.3k"), (999_900, "1M"), (1_234_567, "1.23M"),
     (0.25, "0.25"), (12.0, "12"), (12.34, "12.3"), (11.999, "12"), (-10_500, "-10.5k"), (2e9, "2G")],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert chart.short(value) == text
