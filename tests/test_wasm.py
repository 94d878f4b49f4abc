"""What surrounds a run on WebAssembly: what is missing is said, and the event loop needs no selector."""

import asyncio
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

import wasm

INSIDE = Path(wasm.__file__).parent / "pyodide" / "inside.py"


@pytest.fixture
def loop() -> Callable[[], asyncio.AbstractEventLoop]:
    return cast(Callable[[], asyncio.AbstractEventLoop], runpy.run_path(str(INSIDE))["Loop"])


def test_a_run_without_node_says_what_is_missing_and_is_not_green(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, wasm.__file__], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == wasm.MISSING
    assert done.stderr == "wasm: not run — node is missing: install Node.js 18 or newer, with npm\n"


def test_an_installer_that_fails_is_missing_with_its_last_words() -> None:
    script = "import sys; print('looking'); sys.exit('no such version')"

    with pytest.raises(wasm.Missing, match=r"(?s)pyodide@1 could not be had from python.*no such version"):
        wasm.call("pyodide@1", [sys.executable, "-c", script])


def test_the_loop_runs_what_is_due_and_sleeps_until_the_next_timer(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    order: list[str] = []

    async def later(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    async def both() -> None:
        await asyncio.gather(later("second", 0.002), later("first", 0.001))

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(both())

    assert order == ["first", "second"]


def test_a_wait_that_nobody_can_end_is_an_error_and_no_hang(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    made = loop()
    waiting = wait()
    task = made.create_task(waiting)
    with pytest.raises(RuntimeError, match="waits for ever"):
        made.run_until_complete(task)
    task.cancel()
    made.run_until_complete(asyncio.wait({task}))
    made.close()
