"""The listener's life, with connections that do as they are told: no server, no network."""

import asyncio
import gc
import logging
import random
from typing import Any

import asyncpg
import pytest
from faulty import warped
from lines import Server

from alkstore.errors import Closed, DatabaseError
from alkstore_pg.listener import FIRST_BACK_OFF, LONGEST_BACK_OFF

SOON = 0.05


REFUSED = ConnectionRefusedError(111, "connection refused")


# ---------------------------------------------------------------- up


@warped
async def test_it_listens_and_gives_what_it_hears_in_order() -> None:
    server = Server()
    async with server.listener() as listener:
        await listener.caught_up()
        for text in ("q1:a", "q1:b", ""):
            server.lines[0].deliver(text)
        await listener.caught_up()

        assert server.heard == ["q1:a", "q1:b", ""]
        assert server.lines[0].sent[0][0] == "LISTEN"
        assert server.reconnected == 0


@warped
async def test_those_who_ask_at_the_same_time_share_a_round_trip() -> None:
    server = Server()
    async with server.listener() as listener:
        await listener.caught_up()
        before = len(server.lines[0].sent)

        await asyncio.gather(*(listener.caught_up() for _ in range(50)))

        assert len(server.lines[0].sent) - before <= 2


@warped
async def test_who_asks_during_a_round_trip_is_not_served_by_it() -> None:
    server = Server()
    async with server.listener() as listener:
        await listener.caught_up()
        line = server.lines[0]
        line.answers.clear()
        line.busy.clear()
        early = asyncio.ensure_future(listener.caught_up())
        await line.busy.wait()
        line.busy.clear()
        late = asyncio.ensure_future(listener.caught_up())
        await asyncio.sleep(0)
        line.answers.set()
        await early
        line.answers.clear()

        await line.busy.wait()
        assert not late.done()

        line.answers.set()
        await late


@warped
async def test_it_probes_itself_again_and_again() -> None:
    server = Server(probe_interval=0.01)
    async with server.listener() as listener:
        await listener.caught_up()
        line = server.lines[0]
        while sum("pg_notify" in statement for statement, _ in line.sent) < 3:
            line.busy.clear()
            await line.busy.wait()

        probes = [parameters[0][0] for statement, parameters in line.sent if "pg_notify" in statement]
        assert len(set(probes)) == len(probes)
        assert server.heard == []


# ---------------------------------------------------------------- down


@warped
async def test_who_has_a_poll_behind_him_is_not_told_that_the_server_is_away() -> None:
    server = Server()
    server.error = REFUSED
    async with server.listener() as listener:
        await listener.begun()
        assert server.reconnected == 0

        server.error = None
        await server.woken.wait()

        assert server.reconnected == 1
        await listener.begun()


@warped
async def test_who_came_before_it_was_up_in_vain_is_woken_when_it_is() -> None:
    server = Server()
    server.error = REFUSED
    async with server.listener() as listener:
        await listener.begun()
        server.error = None
        await listener.caught_up()

        assert server.reconnected == 1
        assert server.lines[0].sent[0][0] == "LISTEN"


@warped
async def test_a_server_that_stays_away_is_an_error_after_the_wait_timeout_with_its_cause() -> None:
    server = Server(wait_timeout=SOON)
    server.error = REFUSED
    async with server.listener() as listener:
        with pytest.raises(DatabaseError, match=r"cannot listen.*connection refused") as caught:
            await listener.caught_up()

        assert caught.value.__cause__ is REFUSED
        assert not listener._waiting


@warped
async def test_a_server_that_says_nothing_is_an_error_after_the_wait_timeout() -> None:
    server = Server(wait_timeout=SOON)
    server.prepare = lambda line: line.answers.clear()
    async with server.listener() as listener:
        with pytest.raises(DatabaseError, match=r"cannot listen.*no answer"):
            await listener.caught_up()


@warped
async def test_what_no_waiting_mends_is_told_at_once() -> None:
    server = Server(wait_timeout=3_600.0)
    server.error = asyncpg.InvalidPasswordError("password authentication failed")
    async with server.listener() as listener:
        with pytest.raises(DatabaseError, match="password authentication failed") as caught:
            await listener.caught_up()

        assert caught.value.__cause__ is server.error


@warped
async def test_a_lost_connection_is_made_anew_and_everybody_is_told_after_the_new_listen() -> None:
    server = Server()
    async with server.listener() as listener:
        await listener.caught_up()
        server.lines[0].terminate()
        await server.woken.wait()

        assert server.reconnected == 1
        assert server.lines[1].sent[0][0] == "LISTEN"
        server.lines[1].deliver("q1:a")
        await listener.caught_up()
        assert server.heard == ["q1:a"]


@warped
async def test_who_asks_while_it_is_down_is_served_when_it_is_up() -> None:
    server = Server()
    async with server.listener() as listener:
        await listener.caught_up()
        server.error = REFUSED
        server.lines[0].terminate()
        asking = asyncio.ensure_future(listener.caught_up())
        server.dialled.clear()
        await server.dialled.wait()
        assert not asking.done()

        server.error = None
        await asking

        assert server.reconnected == 1


@warped
async def test_who_asked_when_the_connection_was_lost_is_served_by_the_next_one() -> None:
    server = Server()
    async with server.listener() as listener:
        await listener.caught_up()
        line = server.lines[0]
        line.answers.clear()
        line.busy.clear()
        asking = asyncio.ensure_future(listener.caught_up())
        await line.busy.wait()

        line.terminate()
        await asking

        assert len(server.lines) == 2


@warped
async def test_a_connection_without_answers_is_given_up() -> None:
    server = Server(probe_interval=0.01)
    async with server.listener() as listener:
        await listener.caught_up()
        server.lines[0].answers.clear()

        await server.woken.wait()

        assert server.lines[0].is_closed()
        assert len(server.lines) == 2


@warped
async def test_a_connection_that_answers_and_hears_nothing_is_given_up() -> None:
    server = Server(probe_interval=0.01)
    async with server.listener() as listener:
        await listener.caught_up()
        server.lines[0].is_deaf = True

        await server.woken.wait()

        assert len(server.lines) == 2


@warped
async def test_a_pooler_that_shares_connections_is_told_of_by_name() -> None:
    server = Server(wait_timeout=3_600.0)
    server.prepare = lambda line: setattr(line, "is_deaf", True)
    async with server.listener() as listener:
        with pytest.raises(DatabaseError, match=r"pooler.*listener_dsn"):
            await listener.caught_up()


@pytest.mark.parametrize("error", [DatabaseError("postgresql: gone"), Closed("store"), TimeoutError()])
@warped
async def test_trouble_of_the_other_connection_is_none_of_this_one(error: Exception) -> None:
    async def refuse(text: str) -> None:
        raise error

    server = Server()
    server.tell = refuse
    async with server.listener() as listener:
        await listener.caught_up()


@warped
async def test_it_backs_off_with_jitter_and_for_ever() -> None:
    server = Server()
    server.error = REFUSED
    async with server.listener():
        while len(server.dials) < 6:
            server.dialled.clear()
            await server.dialled.wait()

    gaps = [later - earlier for earlier, later in zip(server.dials, server.dials[1:], strict=False)]
    # Half of each is sure, so that a fleet does not come at once.
    assert all(gap >= FIRST_BACK_OFF * 2**turn / 2 for turn, gap in enumerate(gaps))
    assert LONGEST_BACK_OFF <= 10


@warped
async def test_an_outage_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.error = REFUSED
    with caplog.at_level(logging.INFO, "alkstore"):
        async with server.listener() as listener:
            while len(server.dials) < 3:
                server.dialled.clear()
                await server.dialled.wait()
            server.error = None
            await listener.caught_up()

    assert [record.getMessage() for record in caplog.records] == [
        "cannot listen for schema 'alkstore', whoever waits polls until that is mended: "
        "postgresql: [Errno 111] connection refused",
        "listens again for schema 'alkstore'",
    ]


@warped
async def test_an_outage_is_reported_once_and_its_end_too() -> None:
    server = Server()
    async with server.listener() as listener:
        await listener.caught_up()
        server.error = REFUSED
        server.lines[0].terminate()
        for _ in range(3):
            server.dialled.clear()
            await server.dialled.wait()
        server.error = None
        await listener.caught_up()

    (up, reason, again) = server.reports
    assert (up, again) == (None, None)
    assert "connection" in (reason or "")


@warped
async def test_a_bug_is_logged_with_its_traceback_and_listened_on_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    server.error = ZeroDivisionError("a bug")
    async with server.listener() as listener:
        await listener.begun()
        server.error = None
        await listener.caught_up()

    assert [record.exc_info is not None for record in caplog.records] == [True]


# ---------------------------------------------------------------- cancelling and closing


@warped
async def test_a_thousand_cancelled_questions_leave_nothing_behind() -> None:
    rng = random.Random(7)
    server = Server()
    async with server.listener() as listener:
        await listener.caught_up()
        for _ in range(100):
            asking = [asyncio.ensure_future(listener.caught_up()) for _ in range(10)]
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

        assert not listener._waiting
        await listener.caught_up()
        assert len(server.lines) == 1


@pytest.mark.parametrize("turns", range(12))
@warped
async def test_a_close_at_any_moment_ends_everything(turns: int) -> None:
    server = Server()
    async with server.listener() as listener:
        asking = asyncio.ensure_future(listener.caught_up())
        begun = asyncio.ensure_future(listener.begun())
        for _ in range(turns):
            await asyncio.sleep(0)

        await asyncio.gather(listener.aclose(), listener.aclose())

        await begun
        (served,) = await asyncio.gather(asking, return_exceptions=True)
        assert served is None or isinstance(served, Closed)
        with pytest.raises(Closed):
            await listener.caught_up()
        assert all(line.is_closed() for line in server.lines)


@warped
async def test_a_close_does_not_wait_for_a_connection_that_is_being_made() -> None:
    server = Server()
    hangs = asyncio.Event()

    async def hang() -> Any:
        server.dialled.set()
        await hangs.wait()

    server.dial_listener = hang  # type: ignore[method-assign]  # of a fake
    async with server.listener() as listener:
        asking = asyncio.ensure_future(listener.caught_up())
        await server.dialled.wait()
        await listener.aclose()

        with pytest.raises(Closed):
            await asking


@warped
async def test_a_question_that_was_refused_and_cancelled_at_once_makes_no_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    server.prepare = lambda line: line.answers.clear()
    async with server.listener() as listener:
        asking = asyncio.ensure_future(listener.caught_up())
        await server.dialled.wait()
        closing = asyncio.ensure_future(listener.aclose())
        await asyncio.sleep(0)  # it has refused the question, whose task has not heard of it
        asking.cancel()
        await asyncio.gather(asking, closing, return_exceptions=True)
        del asking
        gc.collect()

    assert caplog.records == []
