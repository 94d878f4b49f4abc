"""What a commit tells other stores, and how often: no server."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from hanging import HUNG
from hypothesis import given
from hypothesis import strategies as st
from jumping import jumping, skip

from alkstore.engine import Topic, TopicKind
from alkstore.errors import DatabaseError
from alkstore.numbers import MAX_INSTANT, MIN_INSTANT
from alkstore_pg.telling import CROWD, SLOW_IN_A_ROW, Debounce, Woken, read_text, text_of, text_of_notify

JOBS = Topic(TopicKind.QUEUE, "jobs")
MAIL = Topic(TopicKind.QUEUE, "mail")
SCHEDULES = Topic(TopicKind.SCHEDULE)
HOUR = 3_600.0

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=80)


# ---------------------------------------------------------------- texts


@given(
    kind=st.sampled_from([TopicKind.QUEUE, TopicKind.STREAM, TopicKind.LOCK]),
    name=NAMES,
    at=st.none() | st.integers(MIN_INSTANT, MAX_INSTANT),
    suffix=st.sampled_from(["", "~0123456789abcdef"]),
)
def test_what_is_told_is_read_as_it_was_meant(
    kind: TopicKind, name: str, at: int | None, suffix: str
) -> None:
    woken = Woken(Topic(kind, name), at)

    assert read_text(text_of(woken, suffix)) == woken


@given(name=NAMES, payload=st.none() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode))
def test_a_notify_is_read_as_its_channel_whatever_its_payload(name: str, payload: bytes | None) -> None:
    assert read_text(text_of_notify(name, payload)) == Woken(Topic(TopicKind.CHANNEL, name))


def test_a_text_counts_characters_and_puts_the_name_last() -> None:
    assert text_of(Woken(Topic(TopicKind.QUEUE, "ä🙂@1~b"), -5), "~ab") == "q6:ä🙂@1~b@-5~ab"
    assert text_of(Woken(SCHEDULES)) == "t0:"
    assert text_of_notify("news", b'{"id":7}') == 'n4:news{"id":7}'
    assert text_of_notify("news", None) == "n4:news"


@pytest.mark.parametrize(
    "text",
    [
        "", "q", "q:", "q4", "q4:job", "Q4:jobs", "x4:jobs", "q-1:", "q٤:jobs", "q 4:jobs", "q99999:jobs", "q4:jobs ",
        "q4:jobs@", "q4:jobs@x", "q4:jobs~", "q4:jobs~xyz", "q4:jobs~ab@5", "q4:jobs@1234567890123456789", "q4:jobs\n",
        '{"table":"job"}', "p4:abcd", "🙂",
    ],
)  # fmt: skip
def test_what_others_send_on_the_channel_means_nothing(text: str) -> None:
    assert read_text(text) is None


# ---------------------------------------------------------------- how often


class Sent:
    """What a debounce sent by itself."""

    def __init__(self) -> None:
        self.told: list[list[Woken]] = []
        self.came = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, told: Sequence[Woken]) -> None:
        self.told.append(list(told))
        self.came.set()
        if self.error is not None:
            raise self.error


def admit(debounce: Debounce, woken: Woken) -> tuple[Woken | None, list[Woken]]:
    carried: list[Woken] = []
    return debounce.admit(woken, carried), carried


async def test_the_first_of_a_topic_is_told_at_once_and_the_next_is_held_back() -> None:
    sent = Sent()
    debounce = Debounce(sent, spacing=HOUR, longest_hold=HOUR)

    assert admit(debounce, Woken(JOBS)) == (Woken(JOBS), [])
    assert admit(debounce, Woken(JOBS)) == (None, [])
    assert admit(debounce, Woken(MAIL)) == (Woken(MAIL), [])

    await debounce.aclose()
    assert sent.told == []


async def test_what_was_held_back_is_told_when_its_window_ends() -> None:
    sent = Sent()
    debounce = Debounce(sent, spacing=HOUR, longest_hold=0.001)
    for woken in (Woken(JOBS), Woken(MAIL), Woken(JOBS, 5), Woken(MAIL, 9)):
        admit(debounce, woken)

    debounce.owe(Woken(JOBS, 9))
    debounce.owe(Woken(JOBS, 5))
    debounce.owe(Woken(JOBS, 7))
    debounce.owe(Woken(MAIL, 9))
    debounce.owe(Woken(MAIL))

    async with asyncio.timeout(HUNG):
        await sent.came.wait()
    assert sent.told == [[Woken(JOBS, 5), Woken(MAIL)]]
    await debounce.aclose()


async def test_what_lands_long_after_its_window_is_told_at_once() -> None:
    sent = Sent()
    debounce = Debounce(sent, spacing=HOUR, longest_hold=HOUR)

    debounce.owe(Woken(JOBS))  # nothing is known of that window any more

    async with asyncio.timeout(HUNG):
        await sent.came.wait()
    await debounce.aclose()


async def test_a_transaction_may_wait_with_what_was_told_lately() -> None:
    sent = Sent()
    debounce = Debounce(sent, spacing=HOUR, longest_hold=HOUR)
    assert not debounce.may_wait(Woken(JOBS))
    debounce.told(Woken(JOBS, 5))

    assert debounce.may_wait(Woken(JOBS, 9))
    assert not debounce.may_wait(Woken(JOBS))  # ready now, and what was told is for later
    assert not debounce.may_wait(Woken(MAIL))

    debounce.owe(Woken(JOBS, 9))
    await debounce.flush()
    assert sent.told == [[Woken(JOBS, 9)]]
    await debounce.aclose()


async def test_a_transaction_that_has_told_of_it_tells_for_those_before_it() -> None:
    sent = Sent()
    debounce = Debounce(sent, spacing=HOUR, longest_hold=HOUR)
    for topic in (JOBS, MAIL):
        debounce.told(Woken(topic, 5))
        debounce.owe(Woken(topic, 7))
    debounce.told(Woken(JOBS))
    debounce.told(Woken(MAIL, 9))

    await debounce.aclose()
    assert sent.told == [[Woken(MAIL, 7)]]


async def test_the_next_commit_after_the_spacing_carries_what_is_owed() -> None:
    sent = Sent()
    debounce = Debounce(sent, spacing=0.0, longest_hold=HOUR)
    admit(debounce, Woken(JOBS, 7))
    debounce.owe(Woken(JOBS, 5))

    assert admit(debounce, Woken(JOBS, 9)) == (Woken(JOBS, 5), [Woken(JOBS, 5)])
    assert debounce._timer is None

    await debounce.aclose()
    assert sent.told == []


@jumping
async def test_in_a_crowd_a_topic_that_was_told_lately_is_told_by_a_statement_of_its_own() -> None:
    sent = Sent()
    debounce = Debounce(sent, spacing=0.0, longest_hold=0.0, lately=HOUR, crowded_for=2 * HOUR)
    admit(debounce, Woken(JOBS))
    for _ in range(SLOW_IN_A_ROW):
        debounce.took(CROWD * 2)

    await skip(HOUR * 0.5)
    assert admit(debounce, Woken(JOBS)) == (None, [])
    assert debounce.may_wait(Woken(JOBS))
    debounce.owe(Woken(JOBS))
    async with asyncio.timeout(HUNG):
        await sent.came.wait()
    assert sent.told == [[Woken(JOBS)]]
    await skip(HOUR * 1.1)
    assert admit(debounce, Woken(JOBS)) == (Woken(JOBS), [])
    await skip(HOUR * 0.2)
    assert admit(debounce, Woken(JOBS)) == (None, [])

    await skip(HOUR * 0.5)  # the crowd has gone
    assert admit(debounce, Woken(JOBS)) == (Woken(JOBS), [])
    assert not debounce.may_wait(Woken(JOBS))
    await debounce.aclose()


async def test_a_slow_commit_now_and_then_is_no_crowd() -> None:
    debounce = Debounce(Sent(), spacing=0.0, lately=HOUR, crowded_for=HOUR)
    for _ in range(SLOW_IN_A_ROW):
        debounce.took(CROWD * 2)
        debounce.took(CROWD / 2)

    assert admit(debounce, Woken(JOBS)) == (Woken(JOBS), [])
    assert admit(debounce, Woken(JOBS)) == (Woken(JOBS), [])
    await debounce.aclose()


async def test_what_is_ready_is_not_held_back_for_what_is_not() -> None:
    debounce = Debounce(Sent(), spacing=HOUR, longest_hold=HOUR)

    assert admit(debounce, Woken(JOBS, 7)) == (Woken(JOBS, 7), [])
    assert admit(debounce, Woken(JOBS)) == (Woken(JOBS), [])
    assert admit(debounce, Woken(JOBS)) == (None, [])
    assert admit(debounce, Woken(JOBS, 5)) == (None, [])
    await debounce.aclose()


async def test_a_close_tells_what_is_owed_and_nothing_is_owed_after_it() -> None:
    sent = Sent()
    debounce = Debounce(sent, spacing=HOUR, longest_hold=HOUR)
    admit(debounce, Woken(JOBS))
    debounce.owe(Woken(JOBS))

    await debounce.aclose()
    debounce.owe(Woken(MAIL))

    assert sent.told == [[Woken(JOBS)]]
    assert debounce._timer is None


async def test_a_close_does_not_wait_for_a_server_that_says_nothing() -> None:
    async def hang(told: Sequence[Woken]) -> None:
        await asyncio.Event().wait()

    debounce = Debounce(hang)
    debounce.owe(Woken(JOBS))

    async with asyncio.timeout(HUNG):
        await debounce.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_could_not_be_told_is_logged_and_the_next_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = Sent()
    sent.error = DatabaseError("postgresql: gone")
    debounce = Debounce(sent, spacing=HOUR, longest_hold=0.0)
    debounce.owe(Woken(JOBS))

    with caplog.at_level(logging.WARNING, "alkstore"):
        await debounce.flush()
    sent.error = None
    debounce.owe(Woken(MAIL))
    await debounce.flush()

    assert [record.getMessage() for record in caplog.records] == [
        "could not tell other stores of 1 wakes; they poll: postgresql: gone"
    ]
    assert sent.told == [[Woken(JOBS)], [Woken(MAIL)]]
    await debounce.aclose()


async def test_what_lands_while_others_are_told_is_told_after_them() -> None:
    sent, goes_on = Sent(), asyncio.Event()

    async def send(told: Sequence[Woken]) -> None:
        await sent(told)
        await goes_on.wait()

    debounce = Debounce(send, spacing=HOUR, longest_hold=0.001)
    async with asyncio.timeout(HUNG):
        debounce.owe(Woken(JOBS))
        await sent.came.wait()
        sent.came.clear()
        debounce.owe(Woken(JOBS))
        debounce.owe(Woken(MAIL))
        goes_on.set()
        await sent.came.wait()

    assert sent.told == [[Woken(JOBS)], [Woken(JOBS), Woken(MAIL)]]
    await debounce.aclose()


async def test_a_million_names_leave_nothing_behind() -> None:
    debounce = Debounce(Sent(), spacing=0.0, longest_hold=0.0)

    for number in range(1_000):
        admit(debounce, Woken(Topic(TopicKind.STREAM, str(number))))

    assert len(debounce._windows) <= 2
    await debounce.aclose()
