"""Engines on a PostgreSQL server that are wrong only where the server, or the way to it, is concerned."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mutant import mutant

from alkstore.clock import ServerClock
from alkstore.engine import Ack, EngineTransaction, EventRecord, NewJob, Topic, TopicKind, Traits, Watch
from alkstore.errors import DatabaseError
from alkstore_pg.engine import PgEngine
from alkstore_pg.join import JoinedTransaction
from alkstore_pg.surroundings import Options

HOUR: float = 3_600.0


# ---------------------------------------------------------------- the listening connection


@mutant("reconnect-wakes-nobody", kills="WAKE-08")
class ReconnectWakesNobody(PgEngine):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.wakes.hub.reconnected = lambda: None  # type: ignore[method-assign]  # the fault


@mutant("half-open-connection-is-not-found", kills="WAKE-08")
class HalfOpenConnectionIsNotFound(PgEngine):
    """It probes so seldom that nobody lives to see it."""

    def __init__(self, options: Options, *args: Any, **named: Any) -> None:
        object.__setattr__(options, "probe_interval", HOUR)
        super().__init__(options, *args, **named)


@mutant("reconnect-passes-over-events", kills="STR-13")
class ReconnectPassesOverEvents(PgEngine):
    """The first page after a reconnect begins with its last event."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._skips = False
        reconnected = self.wakes.hub.reconnected

        def careless() -> None:
            self._skips = True
            reconnected()

        self.wakes.hub.reconnected = careless  # type: ignore[method-assign]  # the fault

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        events = await super().read_events(stream, after, limit)
        if self._skips and len(events) > 1:
            self._skips = False
            return events[-1:]
        return events


@mutant("polling-only-mode-lets-listen", kills="WAKE-10")
class PollingOnlyModeLetsListen(PgEngine):
    column: ClassVar = "pg_poll"

    async def watch(self, topic: Topic) -> Watch:
        return self.wakes.hub.watch(topic) if topic.kind is TopicKind.CHANNEL else await super().watch(topic)


@mutant("notify-limit-is-the-servers", kills="PAY-06")
class NotifyLimitIsTheServers(PgEngine):
    @property
    def traits(self) -> Traits:
        return replace(super().traits, notify_limit=None)


# ---------------------------------------------------------------- what the server keeps


@mutant("jobs-are-not-logged", kills="DUR-01")
class JobsAreNotLogged(PgEngine):
    @classmethod
    async def open(cls, options: Options, clock: ServerClock) -> PgEngine:
        engine = await super().open(options, clock)
        await engine._pool.run(lambda on: on.fetch("ALTER TABLE {schema}.job SET UNLOGGED"))
        return engine


@mutant("restart-ends-the-writer", kills="DUR-05")
class RestartEndsTheWriter(PgEngine):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._lost: DatabaseError | None = None

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        if self._lost is not None:
            raise self._lost
        try:
            return await super().insert_jobs(jobs)
        except DatabaseError as error:
            self._lost = error
            raise


@mutant("instants-from-the-transactions-begin", kills="DUR-09")
class InstantsFromTheTransactionsBegin(PgEngine):
    """Within a transaction it is as late as it was at the first look."""

    @classmethod
    async def open(cls, options: Options, clock: ServerClock) -> PgEngine:
        engine = await super().open(options, clock)
        await engine._pool.run(
            lambda on: on.fetch(
                "CREATE OR REPLACE FUNCTION {schema}.now() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT coalesce("
                "nullif(current_setting('suite.now', true), ''), "
                "set_config('suite.now', (SELECT last_value FROM suite.clock)::text, true))::bigint $$"
            )
        )
        return engine


@mutant("schemas-share-a-channel", kills="DUR-10")
class SchemasShareAChannel(PgEngine):
    @classmethod
    async def open(cls, options: Options, clock: ServerClock) -> PgEngine:
        schema: Any = options.schema
        schema.channel = "alkstore"
        schema._places["channel"] = "'alkstore'"
        return await super().open(options, clock)


@mutant(
    "positions-stay-where-they-were", kills="STR-16", wide="whatever moves a position, which may go anywhere"
)
class PositionsStayWhereTheyWere(PgEngine):
    """Positions are kept beside the database, which a dump does not see."""

    _positions: ClassVar[dict[tuple[str, str, str], int]] = {}

    async def move_offset(self, stream: str, consumer: str, offset: int, *, backwards: bool) -> bool:
        self._positions[self._options.shown, stream, consumer] = offset
        return True

    async def read_offsets(self, stream: str, consumer: str | None = None) -> Mapping[str, int]:
        return {
            name: offset
            for (place, of, name), offset in self._positions.items()
            if (place, of) == (self._options.shown, stream) and consumer in (None, name)
        }


# ---------------------------------------------------------------- strict transactions


@mutant("strict-transaction-reads-streams", kills="STR-12")
class StrictTransactionReadsStreams(PgEngine):
    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        transaction = await super().begin(connection, begun)
        if isinstance(transaction, JoinedTransaction):
            transaction._isolation = "read committed"
        return transaction


@mutant("conflict-reads-as-a-lost-claim", kills="TX-11")
class ConflictReadsAsALostClaim(PgEngine):
    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        transaction: Any = await super().begin(connection, begun)
        settle = transaction.settle_jobs

        async def hopeless(settles: Sequence[Ack]) -> Sequence[int | None]:
            try:
                answers: Sequence[int | None] = await settle(settles)
            except DatabaseError:
                return [None] * len(settles)
            return answers

        transaction.settle_jobs = hopeless
        return transaction  # type: ignore[no-any-return]
