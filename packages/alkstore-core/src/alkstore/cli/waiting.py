"""Waiting for what blocks, while a signal may ask for the end."""

import asyncio
import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from alkstore.stop import StopToken

__all__ = ["in_thread", "unless_stopped"]

T = TypeVar("T")


def in_thread(function: Callable[[], T]) -> "asyncio.Future[T]":
    """Run something that blocks in a thread that nothing waits for: a program that ends must not wait for a pipe."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            value = function()
        except BaseException as error:
            call = functools.partial(_fail, future, error)
        else:
            call = functools.partial(_answer, future, value)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(call)

    threading.Thread(target=work, daemon=True, name="alkstore-reads").start()
    return future


def _answer(future: "asyncio.Future[T]", value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


async def unless_stopped(future: "asyncio.Future[T]", stop: StopToken) -> T | None:
    """Wait for it; None if the stop comes first."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((future, stopped), return_when=asyncio.FIRST_COMPLETED)
        return future.result() if future.done() else None
    finally:
        stopped.cancel()
        if not future.done():
            future.cancel()
