"""The store of this process: made of the settings at its first use, opened at its first call, in each process anew."""

import os
import threading
from typing import Unpack

from alkstore.django.setting import Configuration, configuration, database
from alkstore.sync.proxy import Context, Options
from alkstore.sync.queue import Queue
from alkstore.sync.store import Store
from alkstore.sync.store import open as open_store
from alkstore.sync.tx import Tx

__all__ = ["close", "enqueue", "join", "store"]


class _Held:
    """What the process holds."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.made: tuple[Configuration, Store] | None = None

    def renew(self) -> None:
        # The thread that had its turn at a fork is not there to end it.
        self.turn = threading.Lock()


_held = _Held()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_held.renew)


def store() -> Store:
    """Give the store that the settings name, for plain threads; a server that forks opens one in each process.

    When the settings name another one, as in tests, the one before is closed.

    Raises:
        django.core.exceptions.ImproperlyConfigured: The setting ``ALKSTORE`` cannot be, and why.
        InvalidArgument: The URL, or an option of `alkstore.open`, is not for any engine.
    """
    wanted = configuration()
    made = _held.made
    if made is not None and made[0] == wanted:
        return made[1]
    with _held.turn:
        made = _held.made
        if made is None or made[0] != wanted:
            before, made = made, (wanted, open_store(wanted.url, **wanted.options))
            _held.made = made
            if before is not None:
                before[1].close()
    return made[1]


def close() -> None:
    """Close this process's store, if there is one; its next use makes another. For tests: one in memory is empty then."""
    with _held.turn:
        made, _held.made = _held.made, None
    if made is not None:
        made[1].close()


def join(using: str | None = None) -> Context[Tx]:
    """Ride the transaction that Django is in: ``with transaction.atomic(), alkstore.django.join() as tx``.

    Args:
        using: The database, by its alias; by default the one where the store is.

    Raises:
        InvalidArgument: It is in no transaction, or the store is elsewhere (on entering).

    Rows: TX-10, TX-11.
    """
    from django.db import connections

    return store().join(connections[using or database()])


def enqueue(
    queue: Queue | str, payload: object, *, using: str | None = None, **options: Unpack[Options]
) -> int:
    """Put a job into a queue, in the transaction that Django is in; outside of one it commits by itself.

    Args:
        queue: Its name, or a handle with stamps of its own.
        payload: Any JSON value.
        using: The database whose transaction is meant, by its alias; by default the one where the store is.
        **options: As `alkstore.Queue.enqueue` takes them.

    Returns:
        The job's id.

    Raises:
        InvalidArgument: The transaction is on another database than the store.
    """
    from django.db import connections

    connection = connections[using or database()]
    if connection.in_atomic_block or not connection.get_autocommit():
        with join(using) as tx:
            return tx.enqueue(queue, payload, **options)
    target = store().queue(queue) if isinstance(queue, str) else queue
    return target.enqueue(payload, **options)
