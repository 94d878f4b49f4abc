"""What the tests of child processes run in them; a module that a child can import, with stores of its own."""

import asyncio
import os
import random
import sys
import threading
from functools import partial
from typing import Any

from alkstore import InvalidName, Store
from alkstore_contract_suite.child import hear, tell
from alkstore_contract_suite.factory import Remote
from alkstore_contract_suite.in_process import InProcessFactory
from alkstore_mem.contract import make_store

LIVES: list[Any] = []


class Factory(InProcessFactory):
    """Every process has storage of its own here; the time is one."""

    def __init__(self, process: str = "case") -> None:
        super().__init__(make_store, random.Random(process))
        self._process = process

    def remote(self) -> Remote | None:
        return Factory


class StandsStill(Factory):
    """In a child its time does not move."""

    def remote(self) -> Remote | None:
        return StandsStill

    async def advance(self, seconds: float) -> None:
        if self._process == "case":
            await super().advance(seconds)


class Awkward(Factory):
    """Its recipe fails in the child."""

    def remote(self) -> Remote | None:
        return partial(fail, "no such storage")


def fail(reason: str, process: str) -> Factory:
    raise ValueError(reason)


class Unpicklable(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("it needs two arguments")


async def pid(store: Store) -> int:
    return os.getpid()


async def added(store: Store, first: int, *, second: int) -> int:
    return first + second


async def worker_id(store: Store) -> str | None:
    await store.queue("q").enqueue(1)
    handle = await store.queue("q").claim_one()
    return None if handle is None else handle.job.worker_id


async def refuse(store: Store) -> None:
    raise InvalidName(" ")


async def refuse_awkwardly(store: Store) -> None:
    raise Unpicklable(1, 2)


async def miss_a_method(store: Store) -> None:
    async def list_names() -> None:
        raise NotImplementedError

    try:
        await list_names()
    except NotImplementedError as error:
        raise RuntimeError("told by its cause") from error


async def give_a_lock(store: Store) -> Any:
    return threading.Lock()


async def for_ever(store: Store) -> None:
    try:
        tell("begun")
        await asyncio.Event().wait()
    finally:
        tell("ended")


async def echo(store: Store) -> None:
    while True:
        tell(await hear())


async def claim_later(store: Store, delay: float) -> str:
    await store.queue("q").enqueue("due", delay=delay)
    tell("waiting")
    handle = await store.queue("q").claim()
    assert handle is not None
    return handle.job.payload_as(str)


async def created_at(store: Store) -> object:
    job = await store.queue("q").get_job(await store.queue("q").enqueue(1))
    assert job is not None
    return job.created_at


async def tell_many(store: Store, count: int) -> None:
    for number in range(count):
        tell(number)
    await asyncio.Event().wait()


async def die(store: Store) -> None:
    sys.stderr.write("the last words\n")
    sys.stderr.flush()
    os._exit(7)


async def leave_a_task(store: Store) -> None:
    LIVES.append(asyncio.create_task(asyncio.Event().wait()))


async def leave_a_thread(store: Store) -> None:
    threading.Thread(target=threading.Event().wait, name="left over", daemon=True).start()


async def fail_in_a_callback(store: Store) -> None:
    def callback() -> None:
        raise RuntimeError("in a callback")

    asyncio.get_running_loop().call_soon(callback)
    await asyncio.sleep(0)
