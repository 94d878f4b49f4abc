"""Messages between a case and its child processes: a length of four bytes, then a pickle."""

import asyncio
import pickle
import struct
from typing import Any, Final

__all__ = ["framed", "read_frame"]

LENGTH: Final = struct.Struct("!I")


def framed(message: object) -> bytes:
    """Give the bytes of one message.

    Raises:
        Exception: Whatever the pickling of a value raises, for some values TypeError or AttributeError.
    """
    body = pickle.dumps(message)
    return LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """Wait for one message; None at the end, in the midst of a message too: whoever wrote it was killed."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
