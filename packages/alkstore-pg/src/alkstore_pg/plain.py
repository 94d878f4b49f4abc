"""The connections of plain threads that can be joined, as a session: psycopg's, Django's and SQLAlchemy's on it.

Each statement is sent by the thread that waits for the call. All of these libraries are imported when something of theirs
was given, and not before.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from alkstore.errors import InvalidArgument, show
from alkstore.plain import PlainConnection, is_of, library_of
from alkstore_pg.carrier import check_psycopg, for_psycopg, is_in_psycopg_transaction
from alkstore_pg.session import Row, Schema
from alkstore_pg.transaction import SQL

if TYPE_CHECKING:
    import psycopg

__all__ = ["PlainCarrier"]

_HOW: Final = (
    "a psycopg Connection, Django's connection on psycopg, or a SQLAlchemy Connection or Session "
    "on postgresql+psycopg"
)


class PlainCarrier:
    """A connection that blocks, whatever library is around it."""

    def __init__(self, plain: PlainConnection, schema: Schema) -> None:
        library = library_of(plain.given)
        if library is None:
            raise _refused(plain.given)
        self.errors: tuple[type[BaseException], ...] = (OSError,)
        if is_of(plain.given, "sqlalchemy"):
            from sqlalchemy.exc import SQLAlchemyError

            self.errors = (OSError, SQLAlchemyError)
        self._plain = plain
        self._schema = schema
        self._library = library
        self._root: object = None
        self._driver: psycopg.Connection[Any] | None = None
        self._has_begun = False

    @property
    def given(self) -> object:
        return self._plain.given

    @property
    def driver(self) -> object:
        return self._driver

    @property
    def is_open(self) -> bool:
        driver = self._driver
        return driver is not None and is_in_psycopg_transaction(driver) and self._root is self._library.root

    async def enter(self) -> None:
        await self._plain.thread.run(self._enter)

    async def leave(self) -> None:
        await self._plain.thread.run(self._leave)

    async def fetch(self, statement: str, *parameters: object) -> Sequence[Row]:
        return await self._plain.thread.run(lambda: self._fetch(statement, parameters))

    # ------------------------------------------------------------ on the caller's thread

    def _enter(self) -> None:
        driver = self._library.enter()
        self._driver = connection = _psycopgs(driver)
        import psycopg

        self.errors = (*self.errors, psycopg.Error)
        if check_psycopg(connection, begin="with connection.transaction():"):
            self._has_begun = True
            self._fetch(SQL["alive"], ())
        self._root = self._library.root

    def _leave(self) -> None:
        driver = self._driver
        if self._has_begun and driver is not None and not driver.closed:
            driver.rollback()
        self._library.leave()

    def _fetch(self, statement: str, parameters: Sequence[object]) -> Sequence[Row]:
        import psycopg

        driver = self._driver
        assert driver is not None
        self._library.prepare()
        try:
            with psycopg.RawCursor(driver, row_factory=psycopg.rows.tuple_row) as cursor:  # takes $1 as it is
                cursor.execute(self._schema.render(statement).encode(), for_psycopg(parameters), binary=True)
                return [] if cursor.description is None else cursor.fetchall()
        except psycopg.Error:
            self._library.spoil()
            raise


def _psycopgs(driver: object) -> "psycopg.Connection[Any]":
    if is_of(driver, "psycopg"):
        import psycopg

        if isinstance(driver, psycopg.Connection):
            return driver
    raise _refused(driver)


def _refused(given: object) -> InvalidArgument:
    return InvalidArgument(f"this engine joins, from a plain thread, {_HOW}, got {show(given)}")
