"""The store of this engine, for who builds one without a URL, and what core is told of the engine."""

import random
from collections.abc import Iterable, Mapping

from alkstore import Store
from alkstore.beginning import TxContext, where_called
from alkstore.clock import ServerClock
from alkstore.engine import Engine
from alkstore.hookspecs import EngineRegistration, hookimpl
from alkstore.observing import Observer
from alkstore.stamps import Duration
from alkstore_pg.engine import NOTIFY_LIMIT, PgEngine
from alkstore_pg.examining import examine
from alkstore_pg.native import PgTx
from alkstore_pg.surroundings import OPTIONS, Options, apply, write_script

__all__ = ["PgStore", "alkstore_engine"]


class PgStore(Store):
    """A store in one schema of a PostgreSQL database, which any number of processes and hosts may use.

    ``async with PgStore("postgresql://user@host/database") as store:``.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "alkstore",
        pool_size: int = 10,
        listen: bool = True,
        listener_dsn: str | None = None,
        probe_interval: Duration = 10,
        statement_cache_size: int = 100,
        ssl: object = None,
        migrate: bool = True,
        worker_id: str | None = None,
        wait_timeout: Duration = 30,
        poll_interval: Duration = 5,
        random: random.Random | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        """Prepare a store; it opens with ``async with`` or by awaiting it.

        Args:
            dsn: Where the database is, as libpq spells it; what it leaves out comes from the ``PG…`` variables.
            schema: Holds everything, and nothing else; two schemas of a database share nothing.
            pool_size: Transactions that may be open at once, a connection each; beside one that writes, one that claims, one
                that listens and one for whatever else there is to do while all are open.
            listen: False is the polling-only mode: no connection listens, and whoever waits looks every
                ``poll_interval``.
            listener_dsn: Where the connection that listens goes, if that is past a pooler; ``dsn`` by default.
            probe_interval: Seconds between the notifies that the listener sends itself to find a dead network.
            statement_cache_size: Prepared statements a connection keeps; 0 behind a pooler that shares connections between
                transactions.
            ssl: As `asyncpg.connect` takes it; what ``sslmode`` and its kin in ``dsn`` say by default.
            migrate: Bring the schema up to date when the store opens; False: refuse one that is not.
            worker_id: Who claims, for people to read; ``host:pid:4 hex`` by default.
            wait_timeout: Seconds that anything waits for a transaction, a connection or the server.
            poll_interval: Seconds between looks when a wake was lost.
            random: The source of jitter.
            observers: Who is told what happens (`alkstore.observing`).

        Raises:
            InvalidArgument: An option is not of its domain.
            InvalidName: ``worker_id`` is blank or cannot be stored.
        """
        self._options = Options.checked(
            dsn,
            schema=schema,
            pool_size=pool_size,
            listen=listen,
            listener_dsn=listener_dsn,
            probe_interval=probe_interval,
            statement_cache_size=statement_cache_size,
            ssl=ssl,
            migrate=migrate,
            random=random,
        )
        super().__init__(
            self._open_engine,
            name=self._options.shown,
            worker_id=worker_id,
            wait_timeout=wait_timeout,
            poll_interval=poll_interval,
            random=random,
            observers=observers,
        )

    def begin_tx(self) -> TxContext[PgTx]:
        """As `Store.begin_tx`; the transaction's ``connection`` has the driver's type. Rows: TX-06."""
        return TxContext(self, where_called(1), PgTx)

    async def _open_engine(self) -> Engine:
        return await PgEngine.open(self._options.waiting(self._wait_timeout), self._make_clock())

    def _make_clock(self) -> ServerClock:
        # The suite's stores have another one, whose time it moves.
        return ServerClock()


@hookimpl
def alkstore_engine() -> EngineRegistration:
    """Tell core of this engine."""
    return EngineRegistration(
        schemes=("postgresql", "postgres", "postgresql+asyncpg"),
        open=_open,
        package="alkstore-pg",
        contract_version="1.0",
        durable=True,
        capabilities={
            "durable": True,
            "multi_process": True,
            "sql": True,
            "listen": True,
            "reconnects": True,
            "notify_limit": NOTIFY_LIMIT,
        },
        options=OPTIONS,
        migrate=lambda url, options: apply(_options(url, options)),
        migration_sql=lambda url, options, grant_to: write_script(_options(url, options), grant_to),
        examine=lambda url, options: examine(_options(url, options)),
    )


def _options(url: str, options: Mapping[str, object]) -> Options:
    store = _open(url, options)
    return store._options.waiting(store._wait_timeout)


def _open(url: str, options: Mapping[str, object]) -> PgStore:
    # Core let only known names through; the constructor judges their values.
    return PgStore(url, **options)  # type: ignore[arg-type]
