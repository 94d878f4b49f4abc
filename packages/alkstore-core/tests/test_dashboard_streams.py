"""The pages of a stream's events: by offset, and one of them whole."""

import re
from collections.abc import AsyncIterator

import pytest
from dashboards import HOSTILE, TOKEN, Shown, client_of, shown


@pytest.fixture
async def board() -> AsyncIterator[Shown]:
    async with shown() as found:
        yield found


def offsets(page: str) -> list[int]:
    return [int(found) for found in re.findall(r"offset=(\d+)\"", page)]


async def test_the_last_events_are_shown_and_one_can_go_back_and_forth(board: Shown) -> None:
    await board.store.stream("orders").publish_batch([{"n": n} for n in range(120)])

    last = await board.page("/stream?name=orders")
    older = await board.page("/stream?name=orders&after=20")
    first = await board.page("/stream?name=orders&after=0")

    assert offsets(last) == list(range(71, 121))
    assert offsets(older) == list(range(21, 71))
    assert offsets(first) == list(range(1, 51))
    assert 'after=20">Older' in last
    assert "Newer" not in last
    assert 'after=0">Older' in older
    assert 'after=70">Newer' in older
    assert "Older" not in first
    assert "/stream?name=orders" in await board.page("/streams")


async def test_a_stream_whose_beginning_was_trimmed_is_shown_from_where_it_begins(board: Shown) -> None:
    stream = board.store.stream("orders")
    await stream.publish_batch(range(100))
    await stream.trim_to(95)

    page = await board.page("/stream?name=orders&after=0")

    assert offsets(page) == await _kept(board)
    assert "There are no events after this offset." in await board.words("/stream?name=orders&after=100")
    assert 'after=50">Older' in await board.page("/stream?name=orders&after=100")


async def _kept(board: Shown) -> list[int]:
    return [event.offset for event in await board.store.stream("orders").read_since(0)]


async def test_a_stream_without_events_says_so(board: Shown) -> None:
    assert "No event was ever published here." in await board.words("/stream?name=orders")


async def test_an_event_is_shown_whole_or_its_beginning(board: Shown) -> None:
    stream = board.store.stream("orders")
    small = await stream.publish({"a": [1]}, key="customer 7", headers={"tenant": "acme"})
    large = await stream.publish("ä" * 100_000)

    page, words = (
        await board.page(f"/event?name=orders&offset={small}"),
        await board.words(f"/event?name=orders&offset={small}"),
    )
    cut = await board.page(f"/event?name=orders&offset={large}")

    assert "{\n  &#34;a&#34;: [\n    1\n  ]\n}" in page
    assert "Key customer 7" in words
    assert "tenant acme" in words
    assert "200,002 bytes, of which this is the beginning; <code>alkstore tail --json</code>" in cut
    assert "There is no such event" in await board.words("/event?name=orders&offset=999", 404)


async def test_what_was_published_is_shown_and_never_obeyed(board: Shown) -> None:
    offset = await board.store.stream(HOSTILE).publish(
        {"html": HOSTILE}, key=HOSTILE, headers={HOSTILE: HOSTILE}
    )
    name = str(client_of(None).build_request("GET", "/", params={"name": HOSTILE}).url.query, "ascii")

    for path in (f"/stream?{name}", f"/event?{name}&offset={offset}", f"/event?{name}&offset=9{offset}"):
        page = await board.page(path, 404 if "=9" in path else 200)
        assert page.count("<script>") == 1  # ours
        page = re.sub(r'value="[^"]*"', "", page)  # a form has to give back what it was given
        assert "alert(" in page
        assert "alert('x')" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/stream?name=", "must not be blank"),
        ("/stream?name=__alkstore_x", "__alkstore_x"),
        ("/stream?name=s&after=x", "after must be a whole number"),
        ("/event?name=s", "offset must be a whole number"),
        ("/event?name=s&offset=99999999999999999999", "offset"),
    ],
)
async def test_what_is_no_stream_or_offset_is_refused(board: Shown, path: str, reason: str) -> None:
    assert reason in await board.words(path, 400)


async def test_events_are_for_who_has_the_token_alone() -> None:
    async with shown(token=TOKEN) as board:
        await board.store.stream("orders").publish("a secret")

        for path in ("/stream?name=orders", "/event?name=orders&offset=1"):
            answer = await board.client.get(path)
            assert (answer.status_code, "secret" in answer.text) == (303, False)
