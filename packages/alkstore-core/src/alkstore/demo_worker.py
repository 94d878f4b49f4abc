"""A worker of the demo as a process of its own: ``python -m alkstore.demo_worker``.

The first line of its standard input is its `Task`; the end of its standard input tells it to stop. So it also stops when
the demo is gone, however that ended. It says so on its standard output once it is at work.
"""

import asyncio
import json
import os
import random
import sys
import threading
from dataclasses import asdict, dataclass

from alkstore.demo_source import Facts, parse
from alkstore.demo_work import Areas, Worker
from alkstore.errors import AlkstoreError
from alkstore.opening import open as open_store
from alkstore.stop import StopToken

__all__ = ["Task", "main"]


@dataclass(frozen=True, slots=True)
class Task:
    """What a process is told.

    Attributes:
        url: Of the storage. It may hold a password, so it is no argument, which everybody on the machine could read.
        run: The name of the run.
        worker_id: Who it is.
        seed: Of its jitter.
    """

    url: str
    run: str
    worker_id: str
    seed: str

    def line(self) -> bytes:
        """Give the line that `main` reads."""
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> None:
    """Work until the standard input ends."""
    task = Task(**json.loads(sys.stdin.buffer.readline()))
    stop = StopToken()
    # A thread, since not every event loop can wait for a pipe; a daemon, since nothing else can end its read.
    threading.Thread(target=_await_end_of_input, args=(stop,), daemon=True).start()
    try:
        asyncio.run(_work(task, stop))
    except AlkstoreError as error:
        sys.exit(f"worker {task.worker_id}: {error}")


def _await_end_of_input(stop: StopToken) -> None:
    # Not by sys.stdin: its lock, held by a thread that waits, would make the interpreter abort at its end.
    while os.read(0, 1024):
        pass
    stop.cancel()


async def _work(task: Task, stop: StopToken) -> None:
    jitter = random.Random(task.seed)
    async with open_store(task.url, worker_id=task.worker_id, random=jitter) as store:
        sys.stdout.write("at work\n")
        sys.stdout.flush()
        await Worker(Areas(store, task.run), _parse).run(stop)


async def _parse(path: str) -> Facts:
    return await asyncio.to_thread(parse, path)


if __name__ == "__main__":
    main()
