"""Parsing for the workers of the demo that are tasks: in a pool of processes, so that the event loop stays free."""

import asyncio
import concurrent.futures
import multiprocessing
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from alkstore.demo_source import Facts, parse
from alkstore.demo_work import Parse

__all__ = ["parsing"]

_DEAF: Final = (signal.SIGINT, signal.SIG_IGN)


@asynccontextmanager
async def parsing() -> AsyncIterator[Parse]:
    """Parse in processes where there are any, else in threads, else right here."""
    loop = asyncio.get_running_loop()
    pool: concurrent.futures.Executor
    try:
        spawn = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(None, spawn, signal.signal, _DEAF)
        with _deaf():
            started = loop.run_in_executor(pool, len, "")
        await started
    except (ImportError, OSError, NotImplementedError, RuntimeError):
        try:
            pool = concurrent.futures.ThreadPoolExecutor()
            await loop.run_in_executor(pool, len, "")
        except RuntimeError:
            yield _parse_here
            return

    def parse_in_pool(path: str) -> "asyncio.Future[Facts]":
        with _deaf():
            return loop.run_in_executor(pool, parse, path)

    try:
        yield parse_in_pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _deaf() -> Iterator[None]:
    """Keep Ctrl-C from the processes that a pool starts here, from their first moment on: each would print a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _parse_here(path: str) -> "asyncio.Future[Facts]":
    done: asyncio.Future[Facts] = asyncio.get_running_loop().create_future()
    try:
        done.set_result(parse(path))
    except Exception as error:
        done.set_exception(error)
    return done
