"""Signals that end a worker: the first one asks, the second one insists, the third one finds what was there before."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from alkstore.stop import StopToken

__all__ = ["listening"]

NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def listening(stop: StopToken, hurry: asyncio.Event) -> Iterator[None]:
    """Cancel ``stop`` at the first SIGTERM or SIGINT, set ``hurry`` at the second; outside the main thread hear nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def heard(number: int, frame: FrameType | None) -> None:
        # Not by the loop's own handlers: Windows has none, and a loop that is busy would hear too late.
        if not stop.is_cancelled:
            stop.cancel()
            return
        loop.call_soon_threadsafe(hurry.set)
        restore()

    before = {number: signal.getsignal(number) for number in NUMBERS}

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is heard:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    for number in NUMBERS:
        signal.signal(number, heard)
    try:
        yield
    finally:
        restore()
