"""Where a store is at home: in the event loop that opened it, in the process that did.

Every call of a store asks, so it is asked without the system: `asyncio.get_running_loop` looks up the process's number
each time in Python 3.11, which costs a small call a fiftieth of its time.
"""

import asyncio
import os
import threading
import weakref
from typing import Final

__all__ = ["Home"]


class Home:
    """The running event loop, and the thread that runs it."""

    __slots__ = ("__weakref__", "loop", "thread")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        _homes.add(self)

    def is_here(self) -> bool:
        """Whether the caller runs in it.

        One who asks often looks first whether this is ``thread`` and ``loop`` runs: then it is, as a thread runs one
        loop at a time.
        """
        # The public get_running_loop raises an error of its own in a forked child, where no loop runs.
        is_here = asyncio._get_running_loop() is self.loop
        if is_here:
            self.thread = threading.get_ident()  # another thread may have gone on with the loop
        return is_here


_homes: Final[weakref.WeakSet[Home]] = weakref.WeakSet()


def _leave() -> None:
    """Be at home nowhere in a forked child, whose copy of the loop says that it runs."""
    for home in _homes:
        home.thread = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)
