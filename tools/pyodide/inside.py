"""What tools/wasm.py runs within Pyodide: pytest, on event loops that need neither a socket nor JavaScript's."""

import asyncio
import os
import time
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["Loop", "main"]

FOLDER = "/here"
"""Where the caller's folder is mounted: reports are written there, and no settings of the checkout's are found."""

SETTINGS = ("-c", os.devnull, "--rootdir", FOLDER, "-p", "no:cacheprovider", "-W", "error")


class Pause:
    """What an event loop selects from where there is nothing to select from: the time until its next timer."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError(
                "event loop waits for ever: no timer is set, and no other thread could wake it"
            )
        if timeout > 0:
            time.sleep(timeout)
        return []

    def close(self) -> None:
        """Nothing is open."""


class Loop(asyncio.BaseEventLoop):
    """asyncio's own loop without a selector, a socket to itself, or signals."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = Pause()

    def _process_events(self, events: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Who calls from outside is in this thread, so that the loop is not asleep."""


def main(arguments: Sequence[str]) -> int:
    """Run pytest with the loop above for everybody who asks asyncio for one; gives its exit code."""
    # Pyodide's loop counts as running for as long as JavaScript does, and no second one may run within it.
    asyncio._set_running_loop(None)
    with warnings.catch_warnings():
        # Policies go with Python 3.16, and nothing else yet tells pytest-asyncio which loop to make.
        warnings.simplefilter("ignore", DeprecationWarning)

        class Policy(asyncio.DefaultEventLoopPolicy):
            def new_event_loop(self) -> asyncio.AbstractEventLoop:
                return Loop()

        asyncio.set_event_loop_policy(Policy())
    os.chdir(FOLDER)
    settings = [*SETTINGS, "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
    return int(pytest.main([*settings, *arguments]))
