"""What ``alkstore work module:worker`` names: a worker, or what makes one."""

import importlib
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import click

from alkstore.cli.storage import Storage
from alkstore.errors import show
from alkstore.observing import Observer
from alkstore.worker import Worker

__all__ = ["load", "made"]


def load(target: str) -> object:
    """Import what a target names; the working folder is looked in first.

    Raises:
        UsageError: There is no such module or attribute.
    """
    name, colon, path = target.partition(":")
    if not colon or not name or not path:
        raise click.UsageError(
            f"{target!r} is no MODULE:WORKER; to run a program for each job of a queue: --exec"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: object = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks something itself
        raise click.UsageError(
            f"there is no module {error.name!r} (looked in {os.getcwd()} first)"
        ) from error
    for part in path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise click.UsageError(f"module {name!r} has no {path!r}") from error
    return value


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
        UsageError: It gives no worker, or the storage is named in vain, or observers come too late.
    """
    async with AsyncExitStack() as stack:
        takes_store = False
        if callable(value):
            arguments = []
            takes_store = _takes_one(value)
            if takes_store:
                if storage is None:
                    raise click.UsageError(f"{target} takes a store: give --url, or set ALKSTORE_URL")
                arguments.append(await stack.enter_async_context(storage.open(observers=observers)))
            value = await _entered(value(*arguments), stack)
        if not isinstance(value, Worker):
            raise click.UsageError(
                f"{target} must be an alkstore.worker.Worker or give one, got {show(value)}"
            )
        if is_named and not takes_store:
            raise click.UsageError(f"{target} has a store of its own, so --url and --schema mean nothing")
        if value.store._state == "new":
            value.store._observe(observers)
            _ = await stack.enter_async_context(value.store)
        elif observers and not takes_store:
            raise click.UsageError(
                f"{target} has opened its store already; give it observers=[alkstore.prometheus.Metrics()] itself"
            )
        yield value


async def _entered(value: Any, stack: AsyncExitStack) -> object:
    if inspect.isawaitable(value):
        value = await value
    return await stack.enter_async_context(value) if hasattr(value, "__aenter__") else value


def _takes_one(function: Callable[..., object]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in kinds and each.default is each.empty for each in parameters)
