"""The worker of a project: what a target names, with the store of the settings, and connections as a request has them."""

import dataclasses
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from django.db import close_old_connections

from alkstore import opening
from alkstore.django.setting import Configuration
from alkstore.job import JobHandle
from alkstore.worker import Worker
from alkstore.worker import target as target_of_worker
from alkstore.worker.handler import Call, Selector

__all__ = ["made"]


@asynccontextmanager
async def made(value: object, target: str, wanted: Configuration) -> AsyncIterator[Worker]:
    """Give the worker with its store open, its plain handlers with fresh connections.

    Args:
        value: A worker, or a function, async or not, that gives one or an async context manager of one. A function with
            a parameter gets the store of the settings.
        target: What messages call it.
        wanted: Those settings.

    Raises:
        InvalidArgument: It gives no worker.
    """
    async with AsyncExitStack() as stack:
        if callable(value):
            takes_store = target_of_worker.takes_store(value)
            arguments = [opening.open(wanted.url, **wanted.options)] if takes_store else []
            value = value(*[await stack.enter_async_context(each) for each in arguments])
        worker = await target_of_worker.given(value, target, stack)
        if worker.store._state == "new":
            _ = await stack.enter_async_context(worker.store)
        _refresh(worker)
        yield worker


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
