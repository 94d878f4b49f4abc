import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest
from hanging import HUNG

from alkstore.engine import Signal, Topic, TopicKind
from alkstore.listener import Listener
from alkstore.testing import ManualClock
from alkstore.watch import Hub

NEWS = Topic(TopicKind.CHANNEL, "news")


class Lost(Exception):
    pass


class Wire:
    """A line to a server that the test plays."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.told: asyncio.Queue[Topic | str | Exception | None] = asyncio.Queue()
        self.questions: list[str] = []
        self.is_closed = False

    async def open(self) -> None:
        self._server.dialled += 1
        if self._server.hangs:
            await asyncio.Event().wait()
        if self._server.is_away:
            raise Lost("away")
        self._server.lines.append(self)

    async def read(self, seconds: float) -> Topic | str | None:
        told = await self.told.get()
        if isinstance(told, Exception):
            raise told
        return told

    async def ask(self, question: str) -> None:
        self.questions.append(question)

    async def aclose(self) -> None:
        self.is_closed = True


class Server:
    def __init__(self) -> None:
        self.lines: list[Wire] = []
        self.wires: list[Wire] = []
        self.dialled = 0
        self.is_away = self.hangs = False

    def wire(self) -> Wire:
        self.wires.append(Wire(self))
        return self.wires[-1]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def hub() -> Hub:
    return Hub(ManualClock())


@pytest.fixture
async def listener(server: Server, hub: Hub) -> AsyncIterator[Listener]:
    made = Listener(server.wire, hub, (Lost,), 0.05, 10, random.Random(0))
    await made.open()
    yield made
    await made.aclose()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(HUNG):
        while not is_so():  # noqa: ASYNC110  # any turn may bring it about
            await asyncio.sleep(0.001)


async def test_what_a_line_tells_is_woken(server: Server, hub: Hub, listener: Listener) -> None:
    watch = hub.watch(NEWS)
    server.lines[0].told.put_nowait(NEWS)

    async with asyncio.timeout(HUNG):
        signal = await watch.wait()

    assert (signal, listener.heard) == (Signal.WOKEN, 1)


async def test_whoever_hears_has_heard_all_that_came_before_the_answer(
    server: Server, hub: Hub, listener: Listener
) -> None:
    watch = hub.watch(NEWS)
    await until(lambda: listener.line is not None)
    hearing = asyncio.create_task(listener.hear())
    await until(lambda: bool(server.lines[0].questions))
    before = hearing.done()
    for told in (NEWS, server.lines[0].questions[0]):
        server.lines[0].told.put_nowait(told)
    await asyncio.wait_for(hearing, HUNG)

    assert (before, watch.poll()) == (False, Signal.WOKEN)


async def test_a_lost_line_is_made_again_and_everybody_told(
    server: Server, hub: Hub, listener: Listener
) -> None:
    watch = hub.watch(NEWS)
    await until(lambda: listener.line is not None)
    hearing = asyncio.create_task(listener.hear())
    await until(lambda: bool(server.lines[0].questions))
    server.is_away = True
    server.lines[0].told.put_nowait(Lost("gone"))
    await asyncio.wait_for(hearing, HUNG)  # it ends with the line
    away = (listener.line, server.lines[0].is_closed)
    await until(lambda: server.dialled >= 3)
    server.is_away = False
    async with asyncio.timeout(HUNG):
        signal = await watch.wait()

    assert (away, signal, listener.line) == ((None, True), Signal.RECONNECTED, server.lines[1])


async def test_without_a_line_there_is_nothing_to_wait_for(server: Server, listener: Listener) -> None:
    server.is_away = True
    server.lines[0].told.put_nowait(Lost("gone"))
    await until(lambda: server.lines[0].is_closed)

    await asyncio.wait_for(listener.hear(), HUNG)

    assert listener.line is None


async def test_silence_is_met_with_a_question_and_then_with_another_line(
    server: Server, listener: Listener
) -> None:
    first = server.lines[0]
    first.told.put_nowait(None)
    await until(lambda: first.questions == [""])
    first.told.put_nowait("")  # it is still there
    first.told.put_nowait(None)
    await until(lambda: first.questions == ["", ""])
    first.told.put_nowait(None)
    await until(lambda: len(server.lines) == 2)

    assert first.is_closed


async def test_a_line_that_does_not_get_up_in_time_is_given_up_and_closed(server: Server, hub: Hub) -> None:
    server.hangs = True
    listener = Listener(server.wire, hub, (Lost,), 0.01, 10, random.Random(0))

    with pytest.raises(TimeoutError):
        await listener.open()

    assert [wire.is_closed for wire in server.wires] == [True]


async def test_a_closed_listener_has_let_go_of_its_line_and_dials_no_more(server: Server, hub: Hub) -> None:
    listener = Listener(server.wire, hub, (Lost,), 5, 10, random.Random(0))
    await listener.open()
    await until(lambda: listener.line is not None)

    await listener.aclose()
    await listener.aclose()

    assert (server.lines[0].is_closed, server.dialled) == (True, 1)
