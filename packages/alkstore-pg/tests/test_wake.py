"""What wakes whom, on a server: WAKE-01 to WAKE-05, WAKE-10, Q-21, and what is told to others."""

import asyncio
import itertools
import logging
from contextlib import suppress

import pytest
from hanging import HUNG
from jumping import jumping, skip
from waking import SCHEMA, outsider, pending, quiet, side

from alkstore.engine import Signal, Topic, TopicKind
from alkstore.errors import Closed, DatabaseError, InvalidArgument
from alkstore_pg import wake
from alkstore_pg.session import Row, Schema
from alkstore_pg.telling import CROWD, SLOW_IN_A_ROW, Debounce
from alkstore_pg.wake import Telling, Woken

NEWS = Topic(TopicKind.CHANNEL, "news@7~ab 🙂")
JOBS = Topic(TopicKind.QUEUE, "jobs@7~ab 🙂")
EVENTS = Topic(TopicKind.STREAM, "events")
DOOR = Topic(TopicKind.LOCK, "door")
SCHEDULES = Topic(TopicKind.SCHEDULE)
HOUR = 3_600.0
WOKEN = [Signal.WOKEN]


# ---------------------------------------------------------------- channels


async def test_a_notify_wakes_its_channel_in_every_store_once_each(dsn: str) -> None:
    async with side(dsn) as here, side(dsn) as there:
        watches = [await each.wakes.watch(NEWS) for each in (here, here, there)]
        other = await here.wakes.watch(Topic(TopicKind.CHANNEL, "news"))

        await there.notify((NEWS.name, b'{"a":1}'))
        await quiet(here, there)

        assert [pending(watch) for watch in watches] == [WOKEN] * 3
        assert pending(other) == []


async def test_a_notify_from_before_wakes_the_older_receiver_and_not_the_new_one(dsn: str) -> None:
    async with side(dsn) as here, side(dsn) as there:
        older = await here.wakes.watch(NEWS)
        for notifier in itertools.islice(itertools.cycle((here, there)), 60):
            await notifier.notify((NEWS.name, None))

            newer = await here.wakes.watch(NEWS)

            assert (pending(older), pending(newer)) == (WOKEN, [])
            newer.close()


async def test_channels_with_names_equal_in_their_first_63_bytes_do_not_hear_each_other(dsn: str) -> None:
    one, two = (Topic(TopicKind.CHANNEL, "é" * 100 + end) for end in "ab")
    async with side(dsn) as here, side(dsn) as there:
        heard, silent = await here.wakes.watch(one), await here.wakes.watch(two)

        await there.notify((one.name, b"x" * 7_000))
        await quiet(there, here)

        assert (pending(heard), pending(silent)) == (WOKEN, [])


async def test_notifies_of_one_transaction_may_fold_and_of_many_do_not(dsn: str) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(NEWS)

        await here.notify(*[(NEWS.name, b"1")] * 5)
        await quiet(here)
        assert 1 <= len(pending(watch)) <= 5

        for _ in range(5):
            await here.notify((NEWS.name, b"1"))
        await quiet(here)
        assert 1 <= len(pending(watch)) <= 5


async def test_a_notify_of_nothing_sends_nothing() -> None:
    class Unused:
        async def fetch(self, statement: str, *parameters: object) -> list[Row]:
            raise AssertionError(statement)

    await wake.notify(Unused(), [])


async def test_a_landing_wakes_no_channel(dsn: str) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(NEWS)

        here.wakes.landed([Woken(NEWS)])

        assert pending(watch) == []


# ---------------------------------------------------------------- commits


@pytest.mark.parametrize("topic", [JOBS, EVENTS, DOOR, SCHEDULES])
async def test_a_commit_wakes_its_own_store_at_once_and_others_by_what_it_told(
    dsn: str, topic: Topic
) -> None:
    async with side(dsn) as here, side(dsn) as there:
        near, far = await here.wakes.watch(topic), await there.wakes.watch(topic)

        await here.commit(Woken(topic))
        assert pending(near) == WOKEN
        await quiet(here, there)

        assert (pending(near), pending(far)) == ([], WOKEN)
        assert (here.wakes.heard, there.wakes.heard) == (0, 1)


async def test_a_hundred_commits_are_told_a_few_times_and_the_last_one_always(dsn: str) -> None:
    async with side(dsn) as here, side(dsn) as there, outsider(dsn) as heard:
        watch = await there.wakes.watch(JOBS)
        told = [await here.commit(Woken(JOBS)) for _ in range(100)]
        assert [len(texts) for texts in told].count(1) < 100
        pending(watch)
        await here.commit(Woken(JOBS))  # held back or not

        await quiet(here, there)

        assert pending(watch) == WOKEN
        assert 2 <= len([text for text in heard if text.startswith("q")]) < 100


async def test_a_write_that_may_find_nothing_to_do_tells_each_time_and_for_itself_alone(dsn: str) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(DOOR)
        await here.commit(Woken(DOOR), Woken(JOBS))
        here.wakes._debounce.owe(Woken(DOOR))

        told = [await here.commit(Woken(DOOR), debounced=False) for _ in range(3)]

        assert told == [here.wakes.texts_within([Woken(DOOR)])] * 3
        assert pending(watch) == WOKEN


async def test_a_caller_s_transaction_wakes_the_store_that_rode_it_by_what_it_told(dsn: str) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(JOBS)

        await here.say(*here.wakes.texts_within([Woken(JOBS)]))
        await quiet(here)
        assert pending(watch) == []

        await here.say(*here.wakes.texts_joined([Woken(JOBS)]))
        await quiet(here)
        assert pending(watch) == WOKEN


async def test_what_the_server_s_own_function_tells_is_heard(dsn: str) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(JOBS)
        text = "'q' || char_length($1::text) || ':' || $1"
        statement = f"SELECT pg_notify({{channel}}, {text})"

        await here.link.run(lambda on: on.fetch(statement, JOBS.name))
        await quiet(here)

        assert pending(watch) == WOKEN


def unknown(error: DatabaseError) -> DatabaseError:
    error.outcome_unknown = True
    return error


@pytest.mark.parametrize(
    ("error", "wakes"),
    [
        (DatabaseError("refused"), []),
        (unknown(DatabaseError("gone")), WOKEN),
        (asyncio.CancelledError(), WOKEN),
    ],
)
async def test_a_write_that_failed_wakes_if_it_may_have_landed(
    dsn: str, error: BaseException, wakes: list[Signal]
) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(JOBS)

        with pytest.raises(type(error)), here.wakes.telling([Woken(JOBS)], debounced=True):
            raise error

        assert pending(watch) == wakes


async def test_what_a_failed_write_carried_for_others_is_owed_again(dsn: str) -> None:
    async with side(dsn) as here:
        sent: list[Woken] = []

        async def send(told: object) -> None:
            assert isinstance(told, list)
            sent.extend(told)

        debounce = Debounce(send, spacing=0.0, longest_hold=HOUR)
        debounce.admit(Woken(JOBS), [])
        debounce.owe(Woken(JOBS, 5))

        with suppress(DatabaseError), Telling(here.wakes, debounce, [Woken(JOBS, 9)]) as texts:
            assert texts == here.wakes.texts_within([Woken(JOBS, 5)])
            raise DatabaseError("refused")
        await debounce.flush()

        assert sent == [Woken(JOBS, 5)]
        await debounce.aclose()


@pytest.mark.parametrize("is_single", [True, False])
def test_single_rows_that_take_long_to_tell_are_signs_of_a_crowd(dsn: str, is_single: bool) -> None:
    @jumping
    async def check() -> None:
        async with side(dsn) as here:
            debounce = Debounce(lambda told: asyncio.sleep(0), spacing=0.0, lately=HOUR, crowded_for=HOUR)
            for _ in range(SLOW_IN_A_ROW):
                with Telling(here.wakes, debounce, [Woken(JOBS)], is_single=is_single) as texts:
                    assert texts
                    await skip(2 * CROWD)

            with Telling(here.wakes, debounce, [Woken(JOBS)], is_single=is_single) as texts:
                assert bool(texts) is not is_single
            await debounce.aclose()

    check()


async def test_what_is_held_back_is_not_owed_before_it_has_landed(dsn: str) -> None:
    async with side(dsn) as here:
        debounce = Debounce(lambda told: asyncio.sleep(0), spacing=HOUR, longest_hold=HOUR)
        debounce.admit(Woken(EVENTS), [])

        with Telling(here.wakes, debounce, [Woken(EVENTS)]) as texts:
            assert texts == []
            assert debounce._owed == {}

        assert debounce._owed == {EVENTS: None}
        await debounce.aclose()


async def test_a_close_tells_what_was_held_back(dsn: str) -> None:
    async with side(dsn) as there, outsider(dsn):
        watch = await there.wakes.watch(JOBS)
        async with side(dsn) as here:
            told = [await here.commit(Woken(JOBS)) for _ in range(20)]
            await quiet(there)
            pending(watch)
            await here.commit(Woken(JOBS))
        assert [] in told
        await quiet(there)

        assert pending(watch) == WOKEN


# ---------------------------------------------------------------- what others say


async def test_what_others_say_on_the_channel_wakes_nobody_and_makes_no_noise(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with side(dsn) as here:
        watches = [await here.wakes.watch(topic) for topic in (NEWS, JOBS, EVENTS, DOOR, SCHEDULES)]

        with caplog.at_level(logging.DEBUG):
            await here.say(
                "", "hello", '{"op":"INSERT"}', "q5:other", "n5:otherq4:jobs", "x1:a", "p1:a", "q3:🙂🙂🙂🙂"
            )
            await quiet(here)

        assert [pending(watch) for watch in watches] == [[]] * 5
        assert not [record for record in caplog.records if record.name == "alkstore"]


async def test_a_payload_that_looks_like_our_own_mark_wakes_all_the_same(dsn: str) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(NEWS)

        await here.notify((NEWS.name, here.wakes._suffix.encode()))
        await quiet(here)

        assert pending(watch) == WOKEN


async def test_two_schemas_of_one_database_do_not_hear_each_other(dsn: str) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(NEWS)
        elsewhere = Schema("alkstore").render("SELECT pg_notify({channel}, $1)")

        await here.link.run(lambda on: on.fetch(elsewhere, f"n{len(NEWS.name)}:{NEWS.name}"))
        await quiet(here)
        assert pending(watch) == []

        await here.notify((NEWS.name, None))
        await quiet(here)
        assert pending(watch) == WOKEN
        assert SCHEMA != "alkstore"


# ---------------------------------------------------------------- polling only, and the end


async def test_in_the_polling_only_mode_listen_names_the_option_and_all_else_works(dsn: str) -> None:
    async with side(dsn, listen=False) as here, side(dsn) as there:
        far = await there.wakes.watch(JOBS)

        with pytest.raises(InvalidArgument, match="listener_dsn"):
            await here.wakes.watch(NEWS)
        watches = [await here.wakes.watch(topic) for topic in (JOBS, EVENTS, DOOR, SCHEDULES)]
        await here.commit(Woken(JOBS))
        await quiet(here, there)

        assert [pending(watch) for watch in watches] == [WOKEN, [], [], []]
        assert pending(far) == WOKEN
        assert here.wakes._listener is None


async def test_nothing_listens_for_who_only_waits_for_time(dsn: str) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(Topic(TopicKind.CLOCK))

        assert here.wakes._listener is None
        watch.close()


async def test_a_close_ends_every_wait_and_refuses_new_ones(dsn: str) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(NEWS)
        waiting = asyncio.ensure_future(watch.wait())
        await asyncio.sleep(0)

        async with asyncio.timeout(HUNG):
            await asyncio.gather(here.wakes.aclose(), here.wakes.aclose())

        assert await waiting is Signal.CLOSED
        for topic in (NEWS, JOBS, Topic(TopicKind.CLOCK)):
            with pytest.raises(Closed):
                await here.wakes.watch(topic)
