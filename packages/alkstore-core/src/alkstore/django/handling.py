"""The worker of a project: what a target names, with the store of the settings, and connections as a request has them."""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from django.db import close_old_connections

from alkstore import opening
from alkstore.django.setting import Configuration
from alkstore.errors import InvalidArgument, show
from alkstore.job import JobHandle
from alkstore.worker import Worker
from alkstore.worker.handler import Call, Selector

__all__ = ["load", "made"]


def load(target: str) -> object:
    """Import what ``module:name`` names.

    Raises:
        InvalidArgument: It names nothing.
    """
    name, colon, path = target.partition(":")
    if not colon or not name or not path:
        raise InvalidArgument(f"target must be module:worker, as 'shop.jobs:worker', got {show(target)}")
    try:
        value: object = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks something itself
        raise InvalidArgument(f"there is no module {show(error.name)}, which {show(target)} names") from error
    for part in path.split("."):
        if not hasattr(value, part):
            raise InvalidArgument(f"module {show(name)} has no {show(path)}")
        value = getattr(value, part)
    return value


@asynccontextmanager
async def made(value: object, target: str, wanted: Configuration) -> AsyncIterator[Worker]:
    """Give the worker with its store open, its plain handlers with fresh connections.

    Args:
        value: A worker, or a function that gives one; a function with a parameter gets the store of the settings.
        target: What messages call it.
        wanted: Those settings.

    Raises:
        InvalidArgument: It gives no worker.
    """
    async with AsyncExitStack() as stack:
        if callable(value):
            takes_store = bool(inspect.signature(value).parameters)
            store = opening.open(wanted.url, **wanted.options) if takes_store else None
            value = value() if store is None else value(await stack.enter_async_context(store))
            value = await value if inspect.isawaitable(value) else value
        if not isinstance(value, Worker):
            raise InvalidArgument(
                f"{target} must be an alkstore.worker.Worker or a function that gives one, got {show(value)}"
            )
        if value.store._state == "new":
            _ = await stack.enter_async_context(value.store)
        _refresh(value)
        yield value


def _refresh(worker: Worker) -> None:
    plan = worker._plan
    worker._plan = dataclasses.replace(
        plan,
        assignments=[dataclasses.replace(each, select=_refreshing(each.select)) for each in plan.assignments],
    )


def _refreshing(select: Selector) -> Selector:
    def choose(handle: JobHandle) -> Call:
        call = select(handle)
        return call if call.is_async else dataclasses.replace(call, function=_fresh(call.function))

    return choose


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*positional: object, **named: object) -> object:
        # As around a request: one that the server has dropped since, or that is too old, would fail the job.
        close_old_connections()
        try:
            return function(*positional, **named)
        finally:
            close_old_connections()

    return run
