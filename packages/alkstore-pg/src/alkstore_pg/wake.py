"""Wakes: what a commit of this store wakes at once, and what others commit wakes when the listener hears of it."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from alkstore import statements
from alkstore.clock import Clock
from alkstore.engine import NewWake, Topic, TopicKind, Watch
from alkstore.errors import Closed, InvalidArgument
from alkstore.watch import Hub
from alkstore_pg.link import Link
from alkstore_pg.listener import Listener, Surroundings
from alkstore_pg.session import Session
from alkstore_pg.telling import Debounce, Woken, read_text, text_of, text_of_notify

__all__ = ["Telling", "Wakes", "Woken", "notify"]

_SQL: Final = statements.load("alkstore_pg", "wake")

FIRST_LOOK: Final = 0.01
"""Seconds until a stream is read again of which an open transaction held something back; it doubles from there."""

LONGEST_LOOK: Final = 1.0
"""Seconds between two such reads: whoever holds it back wakes it by committing, unless it rolls back."""


async def notify(on: Session, wakes: Sequence[NewWake]) -> None:
    """Wake each channel; equal ones of one transaction may fold."""
    texts = [text_of_notify(channel, payload) for channel, payload in wakes]
    if texts:
        await on.fetch(_SQL["notify"], texts)


class Wakes:
    """Everything that is waited for in one store, in its event loop.

    Args:
        options: Where the listener connects, if it is to.
        clock: What the waits' instants mean.
        writer: Sends what was held back.
    """

    def __init__(self, options: Surroundings, clock: Clock, writer: Link) -> None:
        self._options = options
        self._writer = writer
        # Not from options.random: two stores with one seed would each take the other's wakes for its own.
        self._suffix = f"~{secrets.token_hex(8)}"
        self._debounce = Debounce(self._send)
        self._queues: dict[str, _Claims] = {}
        self._looks: dict[str, _Look] = {}
        self._listener: Listener | None = None
        self._is_closed = False
        self.heard = 0
        """Times that something was woken by what the listener heard."""
        self.report_listener: Callable[[str | None], object] = lambda _: None
        """Is told when the listener has come up (None) or gone down (why). It listens once somebody waits."""
        self.hub: Final = Hub(clock, self._forget)

    # ------------------------------------------------------------ telling

    def telling(self, woken: Sequence[Woken], *, debounced: bool, is_single: bool = False) -> "Telling":
        """Give what a write that commits by itself is to tell, as a block around it: ``with … as texts``.

        With ``debounced`` it may tell nothing, or for others that came before it too; so it must tell what it is given
        whenever it lands. A write ``is_single`` if it is of one row: how long it takes tells of others in its way.
        """
        return Telling(self, self._debounce if debounced else None, woken, is_single=is_single)

    def texts_within(self, woken: Sequence[Woken]) -> list[str]:
        """Give what a commit of this store's tells; `landed` is for after it."""
        return [text_of(each, self._suffix) for each in woken]

    def parted(self, woken: Sequence[Woken]) -> tuple[list[Woken], list[Woken]]:
        """Part what a transaction is to tell from what may wait until after it: both are given back to `tell_of`."""
        told: list[Woken] = []
        waiting: list[Woken] = []
        for each in woken:
            (waiting if self._debounce.may_wait(each) else told).append(each)
        return told, waiting

    def tell_of(self, told: Sequence[Woken], waiting: Sequence[Woken]) -> None:
        """A transaction has landed that told of some, and has others yet to be told."""
        for each in told:
            self._debounce.told(each)
        for each in waiting:
            self._debounce.owe(each)

    def texts_joined(self, woken: Sequence[Woken]) -> list[str]:
        """Give what a caller's transaction tells, ourselves too: its commit is not ours to see."""
        return [text_of(each) for each in woken]

    def landed(self, woken: Sequence[Woken]) -> None:
        """Wake whom a commit of this store concerns, but no channel: those are the listener's, which counts them once."""
        for each in woken:
            topic = each.topic
            if self.hub.is_watched(topic) and topic.kind is not TopicKind.CHANNEL and self._is_news(each):
                self.hub.wake(topic)

    def let_go(self, woken: Sequence[Woken]) -> None:
        """Wake whom a transaction of this store held back that came to nothing, here and, in a moment, elsewhere."""
        self.landed(woken)
        for each in woken:
            self._debounce.owe(each)

    async def _send(self, told: Sequence[Woken]) -> None:
        await self._tell(*self.texts_within(told))

    async def _tell(self, *texts: str) -> None:
        await self._writer.run(lambda on: on.fetch(_SQL["notify"], list(texts)))

    # ------------------------------------------------------------ waiting

    async def watch(self, topic: Topic) -> Watch:
        """Hear of a topic: every commit after this returned, no notify that was acknowledged before.

        Raises:
            Closed: The store is closed.
            InvalidArgument: A channel, and nothing listens.
            DatabaseError: A channel, and there is no connection to listen on, nor was one made within ``wait_timeout``.

        Cost: a round trip for a channel; the listener's connection the first time; else nothing.
        """
        if topic.kind is not TopicKind.CLOCK:
            await self._attend(topic)
        # Nothing is awaited between the listener's round trip and this.
        watch = self.hub.watch(topic)
        if topic.kind is TopicKind.QUEUE:
            self._queues.setdefault(topic.name, _Claims())
        return watch

    async def _attend(self, topic: Topic) -> None:
        if self._is_closed:
            raise Closed("store")
        if not self._options.listen:
            if topic.kind is TopicKind.CHANNEL:
                raise InvalidArgument(
                    "listen needs a connection of its own, which listen=False forbids; "
                    "give listener_dsn a server without a pooler before it"
                )
            return
        if self._listener is None:
            self._listener = Listener(
                self._options,
                tell=self._tell,
                heard=self._hear,
                reconnected=self.hub.reconnected,
                report=self.report_listener,
            )
        if topic.kind is TopicKind.CHANNEL:
            await self._listener.caught_up()
        else:
            await self._listener.begun()

    def claim_begins(self, queue: str) -> None:
        """A claim of this store's is on its way."""
        claims = self._queues.get(queue)
        if claims is not None:
            claims.begin()

    def claim_ended(self, queue: str, next_at: int | None, is_short: bool) -> None:
        """It has ended: ``next_at`` is when to look again, if it came back short."""
        claims = self._queues.get(queue)
        if claims is not None and claims.end(next_at if is_short else None):
            self.hub.wake(Topic(TopicKind.QUEUE, queue))

    def look_again(self, stream: str) -> None:
        """Have who waits for a stream read it again soon: an open transaction held something back.

        Its commit wakes them; its rollback wakes nobody.
        """
        topic = Topic(TopicKind.STREAM, stream)
        if self.hub.is_watched(topic):
            self._looks.setdefault(stream, _Look(self.hub, topic)).arm()

    async def hear(self) -> None:
        """Return when everything that was committed before this call, anywhere, has been heard here, and all that this
        store has to tell has been told. For tests, whose time stands still.

        Raises:
            DatabaseError: The listener has no connection, nor was one made within ``wait_timeout``.
        """
        await self._debounce.flush()
        if self._listener is not None:
            await self._listener.caught_up()

    async def aclose(self) -> None:
        """End every watch with CLOSED, tell what is held back, and end the listener."""
        if self._is_closed:
            return
        self._is_closed = True
        self.hub.aclose()
        await self._debounce.aclose()
        if self._listener is not None:
            await self._listener.aclose()

    # ------------------------------------------------------------ hearing

    def _hear(self, text: str) -> None:
        # A notify's payload may end in anything.
        if text.endswith(self._suffix) and not text.startswith("n"):
            return
        woken = read_text(text)
        if woken is not None and self.hub.is_watched(woken.topic) and self._is_news(woken):
            self.heard += 1
            self.hub.wake(woken.topic)

    def _is_news(self, woken: Woken) -> bool:
        if woken.topic.kind is not TopicKind.QUEUE:
            return True
        claims = self._queues.get(woken.topic.name)
        return claims is None or claims.judge(woken.at)

    def _forget(self, topic: Topic) -> None:
        if topic.kind is TopicKind.QUEUE:
            self._queues.pop(topic.name, None)
        elif topic.kind is TopicKind.STREAM and (look := self._looks.pop(topic.name, None)) is not None:
            look.cancel()


class Telling:
    """A write that commits by itself, and who hears of it: ours at its end, others by the texts that it carries."""

    __slots__ = ("_began", "_carried", "_debounce", "_held", "_is_single", "_wakes", "_woken")

    def __init__(
        self, wakes: Wakes, debounce: Debounce | None, woken: Sequence[Woken], *, is_single: bool = False
    ) -> None:
        self._wakes = wakes
        self._debounce = debounce
        self._woken = woken
        self._is_single = is_single
        self._began: float | None = None
        self._held: list[Woken] = []
        self._carried: list[Woken] = []

    def __enter__(self) -> list[str]:
        debounce = self._debounce
        if debounce is None:
            return self._wakes.texts_within(self._woken)
        texts: list[str] = []
        for each in self._woken:
            told = debounce.admit(each, self._carried)
            if told is None:
                self._held.append(each)
            else:
                texts.append(text_of(told, self._wakes._suffix))
        if texts and self._is_single:
            self._began = asyncio.get_running_loop().time()
        return texts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for each in self._carried:  # it told nothing
                self._owe(each)
            if not getattr(error, "outcome_unknown", True):
                return
        elif self._began is not None and self._debounce is not None:
            self._debounce.took(asyncio.get_running_loop().time() - self._began)
        # After a failure too: nobody minds a look too many.
        for each in self._held:
            self._owe(each)
        self._wakes.landed(self._woken)

    def _owe(self, woken: Woken) -> None:
        if self._debounce is not None:  # only what it held back is owed
            self._debounce.owe(woken)


class _Claims:
    """What the claims of one queue tell of later wakes: whoever waits has an alarm for the instant that the last one gave.

    A commit costs a store at most one claim (Q-21), and one that is for later costs none if the alarm rings before.
    """

    __slots__ = ("_kept", "_on_their_way", "_told")

    def __init__(self) -> None:
        self._on_their_way = 0
        self._told: int | None = None
        self._kept: int | None = None

    def judge(self, at: int | None) -> bool:
        """Whether to wake for what is claimable from ``at`` on. A claim on its way decides on a later one at its end."""
        if at is None:
            return True
        if self._on_their_way:
            self._kept = at if self._kept is None else min(at, self._kept)
            return False
        return self._told is None or at < self._told

    def begin(self) -> None:
        self._on_their_way += 1

    def end(self, told: int | None) -> bool:
        """A claim has ended, or failed; True if what was kept meanwhile is news."""
        self._told = told
        self._on_their_way = max(self._on_their_way - 1, 0)  # it may have begun before this queue was watched
        kept = self._kept
        if self._on_their_way or kept is None:
            return False
        self._kept = None
        return self.judge(kept)


class _Look:
    """The next read of one stream, ever later while each finds something held back."""

    __slots__ = ("_hub", "_loop", "_pause", "_timer", "_topic", "_woke_at")

    def __init__(self, hub: Hub, topic: Topic) -> None:
        self._hub = hub
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._pause = FIRST_LOOK
        self._woke_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        if self._timer is not None:
            return
        # What was read a while after the last look was not read because of it: the holding back is a new one.
        is_next = self._woke_at is not None and self._loop.time() - self._woke_at < LONGEST_LOOK
        self._pause = min(self._pause * 2, LONGEST_LOOK) if is_next else FIRST_LOOK
        self._timer = self._loop.call_later(self._pause, self._wake)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        self._woke_at = self._loop.time()
        self._hub.wake(self._topic)
