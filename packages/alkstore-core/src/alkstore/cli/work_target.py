"""What ``alkstore work module:worker`` names: a worker, or what makes one."""

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import click

from alkstore.cli.storage import Storage
from alkstore.observing import Observer
from alkstore.worker import Worker
from alkstore.worker import target as target_of_worker

__all__ = ["load", "made"]


def load(target: str) -> object:
    """Import what a target names; the working folder is looked in first.

    Raises:
        UsageError: It is no MODULE:WORKER.
        InvalidArgument: There is no such module or attribute.
    """
    if ":" not in target:
        raise click.UsageError(
            f"{target!r} is no MODULE:WORKER; to run a program for each job of a queue: --exec"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return target_of_worker.load(target)


@asynccontextmanager
async def made(
    value: object,
    target: str,
    storage: Storage | None,
    *,
    is_named: bool,
    observers: Sequence[Observer] = (),
) -> AsyncIterator[Worker]:
    """Give the worker with its store open.

    Args:
        value: A worker, or a function, async or not, that gives one or an async context manager of one. A function with
            a parameter gets a store, opened on ``storage``.
        is_named: Whether the storage was named for this very command.
        observers: Who is told what happens in the store.

    Raises:
        InvalidArgument: It gives no worker.
        UsageError: The storage is named in vain, or not named, or observers come too late.
    """
    async with AsyncExitStack() as stack:
        takes_store = callable(value) and target_of_worker.takes_store(value)
        if callable(value):
            if takes_store and storage is None:
                raise click.UsageError(f"{target} takes a store: give --url, or set ALKSTORE_URL")
            arguments = [] if storage is None or not takes_store else [storage.open(observers=observers)]
            value = value(*[await stack.enter_async_context(each) for each in arguments])
        worker = await target_of_worker.given(value, target, stack)
        if is_named and not takes_store:
            raise click.UsageError(
                f"{target} has a store of its own, so --url, --schema and --option mean nothing"
            )
        if worker.store._state == "new":
            worker.store._observe(observers)
            _ = await stack.enter_async_context(worker.store)
        elif observers and not takes_store:
            raise click.UsageError(
                f"{target} has opened its store already; give it observers=[alkstore.prometheus.Metrics()] itself"
            )
        yield worker
