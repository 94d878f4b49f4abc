"""What the user says of the server, checked before anything is sent, and what must be right there before a store works."""

import asyncio
import contextlib
import dataclasses
import random
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar, Final

import asyncpg

from alkstore import numbers
from alkstore.clock import ServerClock
from alkstore.errors import DatabaseError, InvalidArgument, show
from alkstore.migrations import Migration
from alkstore_pg import dsn as _dsn
from alkstore_pg import schema as _schema
from alkstore_pg import stream as _stream
from alkstore_pg.arrays import teach
from alkstore_pg.dsn import SSL_MODES, Address
from alkstore_pg.link import Connection, OwnConnection, Place, Traffic
from alkstore_pg.pool import Pool
from alkstore_pg.schema import Found
from alkstore_pg.session import READABLE, Schema, Session

__all__ = ["OLDEST", "OPTIONS", "Options", "apply", "check", "prepare", "write_script"]

OLDEST: Final = 14
"""The oldest version of PostgreSQL that this engine is made for."""

OPTIONS: Final = frozenset(
    (
        "schema",
        "pool_size",
        "listen",
        "listener_dsn",
        "probe_interval",
        "statement_cache_size",
        "ssl",
        "migrate",
    )
)
"""Names of the options that are this engine's own."""

SHORTEST_DIAL: Final = 0.9
"""Seconds that any connection is given to be made, however little ``wait_timeout`` is; the pool waits a little longer."""

LEAST_DIAL: Final = 5.0
"""Seconds that the listener gives a connection to be made, however little ``wait_timeout`` is: nobody waits for it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What `PgStore` was given, checked. Make it by `checked`. Its text shows no password."""

    schema: Schema
    pool_size: int
    listen: bool
    probe_interval: float
    """Seconds."""
    statement_cache_size: int
    migrate: bool
    random: random.Random
    wait_timeout: float = 30.0
    """Seconds."""
    _address: Address = dataclasses.field(repr=False)
    _listener: Address = dataclasses.field(repr=False)
    _ssl: Any = dataclasses.field(repr=False)

    connection_class: ClassVar[type[OwnConnection]] = OwnConnection

    @classmethod
    def checked(
        cls,
        dsn: object,
        *,
        schema: object = "alkstore",
        pool_size: object = 10,
        listen: object = True,
        listener_dsn: object = None,
        probe_interval: object = 10,
        statement_cache_size: object = 100,
        ssl: object = None,
        migrate: object = True,
        random: object = None,
    ) -> "Options":
        """Check what the user said.

        Raises:
            InvalidArgument: A value is not of its domain.
        """
        address = _dsn.read(dsn, "dsn")
        listens = _flag(listen, "listen")
        if listener_dsn is not None and not listens:
            raise InvalidArgument("listener_dsn has no use with listen=False; leave one of them out")
        return cls(
            schema=Schema(schema),  # type: ignore[arg-type]  # it judges the type itself
            pool_size=numbers.integer(pool_size, "pool_size", least=1),
            listen=listens,
            probe_interval=numbers.duration(probe_interval, "probe_interval", positive=True) / 1_000_000,
            statement_cache_size=numbers.integer(statement_cache_size, "statement_cache_size", least=0),
            migrate=_flag(migrate, "migrate"),
            random=_source(random),
            _address=address,
            _listener=address if listener_dsn is None else _dsn.read(listener_dsn, "listener_dsn"),
            _ssl=_tls(ssl),
        )

    def waiting(self, wait_timeout: float) -> "Options":
        """Give the same with the seconds that anything waits."""
        return dataclasses.replace(self, wait_timeout=wait_timeout)

    @property
    def shown(self) -> str:
        """What a store is called in messages: where it is, without who may go there and how."""
        return f"postgresql {self._address.host}/{self._address.database} schema {self.schema.name}"

    async def dial(self) -> Connection:
        """Make a connection for statements.

        Raises:
            OSError: Nobody answers there, or not within ``wait_timeout``; the text says where.
            asyncpg.PostgresError: The server refuses.
        """
        seconds = max(self.wait_timeout, SHORTEST_DIAL)
        return await self._connect(self._address, self.statement_cache_size, seconds)

    async def dial_listener(self) -> Connection:
        """Make a connection that listens; raises as `dial`."""
        connection = await self._connect(self._listener, 0, max(self.wait_timeout, LEAST_DIAL))
        # It asks for nothing that takes long, and another connection takes its time.
        connection.is_seen_through = False
        return connection

    async def _connect(self, address: Address, statement_cache_size: int, seconds: float) -> OwnConnection:
        # Poolers refuse settings that they do not know; this one they know.
        settings = {} if address.has_application_name else {"application_name": "alkstore"}
        try:
            connection: OwnConnection = await asyncpg.connect(
                address.dsn,
                ssl=self._ssl,
                timeout=seconds,
                statement_cache_size=statement_cache_size,
                server_settings=settings,
                connection_class=self.connection_class,
            )
        except TimeoutError as error:
            # Not a TimeoutError: that would read as if all connections were in use.
            raise ConnectionError(f"no answer from {address.host} within {seconds:g} s") from error
        except ssl.SSLError:
            raise
        except OSError as error:
            raise _unreachable(error, address.host) from error
        except ValueError as error:  # of the driver's reading, or of a name that no resolver takes
            raise asyncpg.ClientConfigurationError(_without(str(error), address.secrets)) from None
        teach(connection)
        return connection


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what} must be True or False, got {show(value)}")
    return value


def _source(value: object) -> random.Random:
    if value is None:
        return random.Random()
    if not isinstance(value, random.Random):
        raise InvalidArgument(f"random must be a random.Random, got {show(value)}")
    return value


def _tls(value: object) -> object:
    if value is None or isinstance(value, (bool, ssl.SSLContext)):
        return value
    if isinstance(value, str) and value in SSL_MODES:
        return value
    raise InvalidArgument(
        f"ssl must be None, True, False, an ssl.SSLContext or one of {', '.join(SSL_MODES)}, got {show(value)}"
    )


# ---------------------------------------------------------------- connections


def _unreachable(error: OSError, host: str) -> OSError:
    # The driver's own text does not say where: with a socket's missing file not even by half.
    if error.errno is not None:
        text = f"nobody answers at {host}: {error.strerror or error}; is the server running there?"
        return OSError(error.errno, text)
    if "SSL" in str(error):
        return ConnectionError(f"the server at {host} offers no TLS (SSL), which sslmode or ssl asks for")
    return ConnectionError(f"what is at {host} did not answer as PostgreSQL does: {error}")


def _without(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = text.replace(secret, "…")
    return text


# ---------------------------------------------------------------- opening


async def prepare(link: Place, pool: Pool, options: Options, clock: ServerClock) -> None:
    """Look whether server, role and schema will do, tell the clock what time it is there, bring the schema up to date.

    Raises:
        InvalidArgument: The database's encoding, or the isolation level that the role is set to, cannot work.
        DatabaseError: The server or the role's privileges will not do, or the schema is not up to date and may not be
            brought there.
        SchemaMismatch: A newer version wrote the schema.

    Cost: two round trips when there is nothing to do, three where there are streams. Rows: DUR-03, DUR-04, DUR-09, DUR-10.
    """
    schema = options.schema

    async def look(on: Session) -> Found:
        loop = asyncio.get_running_loop()
        sent = loop.time()
        found = await _schema.look(on, schema)
        clock.heard(found.now, sent, loop.time())
        return found

    found = await link.run(look, reads=True)
    check(found, schema)
    lacking, has_streams = await link.run(lambda on: _schema.standing(on, found), reads=True)
    if lacking and not options.migrate:
        has = f"has version {lacking[0].version - 1}" if found.has_list else "is missing or empty"
        which = "" if schema.name == "alkstore" else f" --schema {schema.name}"
        raise DatabaseError(
            f"postgresql: schema {show(schema.name)} {has}, this engine needs version {lacking[-1].version}, "
            f"and migrate is False; run alkstore migrate{which}"
        )
    if lacking:
        await _schema.migrate(pool, schema, wait_timeout=options.wait_timeout, random=options.random)
    if has_streams:
        await link.run(_stream.catch_up)


async def apply(options: Options) -> Sequence[Migration]:
    """Bring the schema up to date whatever ``migrate`` says, and give what that took; raises as `prepare`."""
    async with _pool(options) as pool:
        check(await pool.run(lambda on: _schema.look(on, options.schema), reads=True), options.schema)
        return await _schema.migrate(
            pool, options.schema, wait_timeout=options.wait_timeout, random=options.random
        )


async def write_script(options: Options, grant_to: str | None) -> str:
    """Give as a script for psql what `apply` would do, and what a role is to be granted; changes nothing."""
    schema = options.schema
    async with _pool(options) as pool:
        found = await pool.run(lambda on: _schema.look(on, schema), reads=True)
        # Whoever asks need not be one who may use the tables.
        check(found._replace(lacking=()), schema)
        lacking = await pool.run(lambda on: _schema.pending(on, found), reads=True)
    granted = "" if grant_to is None else _schema.grants(schema, grant_to)
    return _schema.script(schema, found, lacking) + granted


@contextlib.asynccontextmanager
async def _pool(options: Options) -> AsyncIterator[Pool]:
    pool = Pool(options.dial, options.schema, size=1, wait_timeout=options.wait_timeout, traffic=Traffic())
    try:
        yield pool
    finally:
        await pool.close()


def check(found: Found, schema: Schema) -> None:
    """Refuse what cannot work; raises as `prepare`."""
    if found.version < OLDEST * 10_000:
        raise DatabaseError(
            f"postgresql: the server must be version {OLDEST} or newer, got {found.version_text}"
        )
    if found.encoding != "UTF8":
        raise InvalidArgument(
            f"the database must have the encoding UTF8, got {found.encoding}; make one with ENCODING 'UTF8'"
        )
    if found.isolation not in READABLE:
        raise InvalidArgument(
            f"the role must begin transactions as read committed, got {found.isolation}: it would pass over events; "
            f"ALTER ROLE … SET default_transaction_isolation = 'read committed'"
        )
    if found.is_standby or found.is_read_only:
        why = (
            "a standby"
            if found.is_standby
            else "set to default_transaction_read_only for this role or database"
        )
        raise DatabaseError(
            f"postgresql: the server takes no writes, it is {why}; "
            "connect to the primary, in the DSN perhaps by target_session_attrs=read-write"
        )
    if (found.has_schema and not found.has_usage) or found.lacking:
        what = f"table {found.lacking[0]} of " if found.has_usage else ""
        raise DatabaseError(
            f"postgresql: role {show(found.role)} may not use {what}schema {show(schema.name)}; "
            "grant it what alkstore migrate --sql --grant-to prints"
        )
