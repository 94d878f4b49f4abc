"""Streams: logs that readers see in the order of their offsets, and where each consumer stands.

State model. Offsets come from one sequence, less the stream's base, and are drawn before they are committed. Whoever
appends holds a shared advisory lock with the sequence's value before he drew, the *floor*, until his transaction ends;
readers stop at the least floor that others hold (docs/decisions/0022-floor-lock.md). Positions are held by row locks.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from alkstore import statements
from alkstore.engine import AlikeEvents, EventRows, NewEvent, OffsetSave, Topic, TopicKind
from alkstore.errors import DatabaseError
from alkstore_pg.errors import sqlstate
from alkstore_pg.link import Operation
from alkstore_pg.session import Row, Session
from alkstore_pg.wake import Woken

__all__ = [
    "Page",
    "StreamKey",
    "StreamKeys",
    "append",
    "catch_up",
    "head",
    "hold_position",
    "isolation",
    "move",
    "names",
    "names_in",
    "offsets",
    "position",
    "read",
    "save",
    "trim",
    "woken_by",
]

T = TypeVar("T")

_SQL: Final = statements.load("alkstore_pg", "stream")

MOST_KEYS: Final = 10_000
"""Streams whose keys a store remembers: about 3 MB."""

OUTDATED: Final = "AK002"
"""The SQLSTATE of what 0003_streams.sql raises for a key of another schema."""

# An enum's member costs a metaclass call at every access in Python 3.11.
STREAM: Final = TopicKind.STREAM

# ---------------------------------------------------------------- what statements call a stream


class StreamKey(NamedTuple):
    """A stream's row: what events refer to, and what is taken off the sequence's values. Neither ever changes.

    ``home`` is what tells its schema from one of the same name that is made when this one was dropped.
    """

    id: int
    base: int
    home: int


class Runner(Protocol):
    """What runs an operation that commits by itself: a `Pool` or a `Link`."""

    async def run(self, operation: Operation[T], *, reads: bool = False) -> T: ...


class StreamKeys:
    """The keys of the streams that a store met last.

    A row is made by a commit of its own, before the transaction that appends: so its base is below every offset, nobody
    waits for that transaction's end to append to the same new stream, and a transaction that cannot see the row
    (REPEATABLE READ) needs not.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._known: dict[str, StreamKey] = {}

    async def made(self, names: Collection[str]) -> Mapping[str, StreamKey]:
        """Give the key of each stream, which gets a row unless it has one.

        Cost: one round trip, none for streams met lately.
        """
        found = {name: key for name in names if (key := self.met(name)) is not None}
        if lacking := sorted(set(names) - found.keys()):
            found |= self._keep(await self._runner.run(lambda on: on.fetch(_SQL["make"], lacking)))
        return found

    async def find(self, name: str) -> StreamKey | None:
        """Give a stream's key, or None if it has no row. Cost: as `made`."""
        key = self.met(name)
        if key is None:
            key = (await self._runner.run(lambda on: self.look(on, [name]), reads=True)).get(name)
        return key

    def unmet(self, names: Collection[str]) -> Sequence[str]:
        """Give which of them were not met lately."""
        return sorted(name for name in set(names) if name not in self._known)

    async def look(self, on: Session, names: Sequence[str]) -> Mapping[str, StreamKey]:
        """Meet those that have a row, which was committed."""
        return self._keep(await on.fetch(_SQL["find"], names))

    async def using(self, name: str, use: Callable[[StreamKey], Awaitable[T]], without: T) -> T:
        """Give what ``use`` makes of a stream's key, ``without`` if the stream has no row."""
        key = await self.find(name)
        if key is None:
            return without
        try:
            return await use(key)
        except DatabaseError as error:
            if not self.are_outdated(error):
                raise
        key = await self.find(name)
        return without if key is None else await use(key)

    async def making(
        self, names: Collection[str], use: Callable[[Mapping[str, StreamKey]], Awaitable[T]]
    ) -> T:
        """Give what ``use`` makes of streams' keys, which get rows unless they have them."""
        try:
            return await use(await self.made(names))
        except DatabaseError as error:
            if not self.are_outdated(error):
                raise
        return await use(await self.made(names))

    def are_outdated(self, error: BaseException | None) -> bool:
        """Whether it failed because the schema was dropped and made again; then all are forgotten, and nothing was done."""
        state = sqlstate(error.__cause__ or error) if error is not None else None
        if state == OUTDATED:
            self._known.clear()
        return state == OUTDATED

    def met(self, name: str) -> StreamKey | None:
        """Give a stream's key if it was met lately."""
        key = self._known.pop(name, None)
        if key is not None:
            self._known[name] = key  # the last met is forgotten last
        return key

    def _keep(self, rows: Iterable[Row]) -> dict[str, StreamKey]:
        kept = {name: StreamKey(*key) for name, *key in rows}
        self._known |= kept
        while len(self._known) > MOST_KEYS:
            del self._known[next(iter(self._known))]
        return kept


# ---------------------------------------------------------------- the seam, in its order


class Page(NamedTuple):
    """What a read found; ``is_held_back``: there is more, behind an open transaction."""

    events: EventRows
    is_held_back: bool


def names_in(events: Sequence[NewEvent]) -> Sequence[str]:
    """Give each stream of some events once, in the order in which they name them."""
    if isinstance(events, AlikeEvents):
        return (events.pattern.stream,) if events else ()
    return tuple(dict.fromkeys([event.stream for event in events]))


def woken_by(names: Iterable[str]) -> Sequence[Woken]:
    """Say whom an append to streams concerns: who waits for any of them."""
    return [Woken(Topic(STREAM, name)) for name in names]


async def append(
    on: Session,
    events: Sequence[NewEvent],
    keys: Mapping[str, StreamKey],
    texts: Sequence[str],
    patience: int,
    floors: MutableMapping[int, int] | None = None,
) -> Sequence[int]:
    """Append to any number of streams; gives the offsets in the order of ``events``.

    ``floors`` is what a transaction keeps between its calls, by stream id; None for a commit of its own. Waits at most
    ``patience`` ms for others that append.
    """
    if not events:
        return []
    names = names_in(events)
    streams = [keys[name] for name in names]
    places, *columns = _columns(events, names)
    remembered = None if floors is None else [floors.get(key.id) for key in streams]
    ((held, drawn),) = await on.fetch(
        _SQL["append"],
        [key.id for key in streams],
        [key.base for key in streams],
        remembered,
        places,
        *columns,
        texts,
        streams[0].home,
        patience,
    )
    if floors is not None:
        for key in streams:
            floors.setdefault(key.id, held)
    if len(streams) == 1:
        base = streams[0].base
        return [value - base for value in drawn]
    return [value - streams[place - 1].base for value, place in zip(drawn, places, strict=True)]


def _columns(events: Sequence[NewEvent], names: Sequence[str]) -> Sequence[Sequence[Any]]:
    """Give of each event its stream's place among the names, its key, payload and headers."""
    count = len(events)
    if isinstance(events, AlikeEvents):
        _, key, _, headers = events.pattern
        return [1] * count, [key] * count, events.payloads, [headers] * count
    streams, keys, payloads, headers_of = zip(*events, strict=True)
    if len(names) == 1:
        return [1] * count, keys, payloads, headers_of
    places = {name: place for place, name in enumerate(names, 1)}
    return [places[name] for name in streams], keys, payloads, headers_of


async def read(
    on: Session, stream: str, key: StreamKey, after: int, limit: int, *, own: bool = False
) -> Page:
    """Read one page; with ``own`` within a transaction, whose events are shown as far as no other's may still come.

    A transaction must be READ COMMITTED: ask `isolation`.
    """
    rows = await on.fetch(_SQL["read"], *key, after, limit, own)
    is_held_back = bool(rows) and rows[-1][0] is None
    # Tuples: what users keep of them is to be compared and pickled, which a driver's rows cannot be.
    shown = list(map(tuple, rows[:-1] if is_held_back else rows))
    return Page(EventRows(stream, shown), is_held_back)


async def head(on: Session, key: StreamKey) -> int:
    """Give the greatest offset that a reader may see now, whatever was trimmed since."""
    rows = await on.fetch(_SQL["head"], *key)
    return int(rows[0][0])


async def trim(on: Session, key: StreamKey, horizon: int) -> int:
    """Delete events with offset <= ``horizon`` that a reader may see now; wakes nobody."""
    rows = await on.fetch(_SQL["trim"], *key, horizon)
    return int(rows[0][0])


async def offsets(on: Session, key: StreamKey, consumer: str | None) -> Mapping[str, int]:
    """Give the saved position of one consumer, or of all; who never saved is absent."""
    if consumer is None:
        return {row[0]: row[1] for row in await on.fetch(_SQL["offsets"], key.id, key.home)}
    rows = await on.fetch(_SQL["position"], key.id, key.home, consumer)
    return {consumer: rows[0][0]} if rows else {}


async def move(
    on: Session, key: StreamKey, consumer: str, offset: int, patience: int, *, backwards: bool
) -> bool:
    """Save a position: any value if ``backwards``, else only a greater one. Waits for a transaction that holds it."""
    rows = await on.fetch(_SQL["move"], key.id, key.home, consumer, offset, backwards, patience)
    return bool(rows[0][0])


async def names(on: Session) -> Sequence[str]:
    """Give the streams that have events or positions."""
    return [name for (name,) in await on.fetch(_SQL["names"])]


# ---------------------------------------------------------------- parts of a transaction


async def position(on: Session, key: StreamKey, consumer: str) -> int:
    """Give a consumer's position, 0 for an unknown one."""
    return (await offsets(on, key, consumer)).get(consumer, 0)


async def hold_position(on: Session, key: StreamKey, consumer: str, patience: int) -> int:
    """Give a consumer's position, and let nobody move it until the transaction ends."""
    rows = await on.fetch(_SQL["hold"], key.id, key.home, consumer, patience)
    return int(rows[0][0])


async def save(
    on: Session, key: StreamKey, consumer: str, offset: int, expected: int | None, patience: int
) -> OffsetSave:
    """Hold the position, and save if it is ``expected`` (None: if ``offset`` is greater)."""
    rows = await on.fetch(_SQL["save"], key.id, key.home, consumer, offset, expected, patience)
    return OffsetSave(*rows[0])


async def isolation(on: Session) -> str:
    """Give the isolation level of the transaction that this runs in, in small letters; it is settled from then on.

    Only in ``read committed`` and its alias ``read uncommitted`` can a stream be read: elsewhere every statement sees
    what was committed when the first one ran, and a reader would pass over what lands since.
    """
    rows = await on.fetch(_SQL["isolation"])
    return str(rows[0][0])


# ---------------------------------------------------------------- at open


async def catch_up(on: Session) -> bool:
    """Raise the sequence to the greatest offset there is; True if it was behind, as after logical replication.

    Cost: one round trip, and a look at the end of each stream.
    """
    rows = await on.fetch(_SQL["catch_up"])
    return bool(rows and rows[0][0])
