"""The writing connection, opened with the store and again whenever it is of no use any more."""

import threading

from alkstore.clock import Clock
from alkstore_sqlite import schema
from alkstore_sqlite.connection import Connection, Patience, Wait
from alkstore_sqlite.link import Link
from alkstore_sqlite.place import Place
from alkstore_sqlite.surroundings import Durability, prepare_writer

__all__ = ["open_writer"]


async def open_writer(
    path: str, clock: Clock, durability: Durability, place: Place | None, wait: Wait
) -> Link:
    """Open the file for writing, and bring its tables up to date.

    Args:
        place: Where it was when the store was opened; without one it is made if it is not there.
        wait: How long another process is waited for; the store's own, so that its close ends this too.

    Raises:
        DatabaseError: It will not do, and why.
        SchemaMismatch: It was written by a newer version.
        Closed: The store was closed meanwhile.
    """
    is_given_up = threading.Event()
    patience = Patience(wait, has_gone=is_given_up.is_set)

    def prepare(connection: Connection) -> None:
        patience.call(lambda: prepare_writer(connection, durability))
        connection.heed()
        schema.migrate(connection, clock.now(), patience)

    return await Link.open(path, prepare, place, is_given_up.set)
