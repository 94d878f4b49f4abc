"""What a row may need of the platform, and which of it is absent here."""

import os
import sys
from collections.abc import Mapping
from typing import Final

__all__ = ["ABSENT", "CAN_FORK", "NEEDS", "TOO_DEEP"]

NEEDS: Final = ("fork", "threads")

IS_WASM: Final = sys.platform in {"emscripten", "wasi"}
"""WebAssembly: `os.fork` and `threading.Thread` exist there, and every call of them fails."""

CAN_FORK: Final = hasattr(os, "fork") and not IS_WASM

ABSENT: Final[Mapping[str, str]] = {
    **({} if CAN_FORK else {"fork": "this platform cannot fork child processes"}),
    **({"threads": "this platform cannot start threads"} if IS_WASM else {}),
}
"""Why, for each need that this platform does not meet."""

TOO_DEEP: Final = (1_000, 2_000) if IS_WASM else (5_000, 100_000)
"""Containers within each other, more than C code's stack bears; CPython on WebAssembly dies of freeing 4,000."""
