"""An event loop whose time a test moves ahead: what gives up after a while is seen to, and nobody waits for it."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec

__all__ = ["jumping", "skip"]

P = ParamSpec("P")

TURNS = 20
"""Turns of the loop in which those whose time is over have seen it."""


class JumpLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes as everywhere, and jumps at a test's word."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


def jumping(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run a test in a loop of its own, in which it may `skip` time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=JumpLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def skip(seconds: float) -> None:
    """Let so many seconds have passed, and everybody who waits for nothing but them see it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpLoop)
    loop.skipped += seconds
    for _ in range(TURNS):
        await asyncio.sleep(0)
