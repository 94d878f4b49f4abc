"""What ``module:name`` names: a worker, or a function that gives one."""

import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from alkstore.errors import InvalidArgument, show
from alkstore.worker.worker import Worker

__all__ = ["given", "load", "takes_store"]


def load(target: str) -> object:
    """Import what a target names.

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
        raise InvalidArgument(
            f"there is no module {show(error.name)} (looked in {show(sys.path[0])} first)"
        ) from error
    for part in path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise InvalidArgument(f"module {show(name)} has no {show(path)}") from error
    return value


def takes_store(function: Callable[..., object]) -> bool:
    """Whether a function has a parameter that must be given, which is the store."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in kinds and each.default is each.empty for each in parameters)


async def given(value: Any, target: str, stack: AsyncExitStack) -> Worker:
    """Give the worker that a target is, or that its function gave: awaited, or entered until the stack ends.

    Raises:
        InvalidArgument: It is none.
    """
    if inspect.isawaitable(value):
        value = await value
    if hasattr(value, "__aenter__"):
        value = await stack.enter_async_context(value)
    if not isinstance(value, Worker):
        raise InvalidArgument(f"{target} must be an alkstore.worker.Worker or give one, got {show(value)}")
    return value
