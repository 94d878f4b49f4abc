"""The end of a process that has used a store without asyncio."""

import subprocess
import sys

DROPPED = """
import logging
import alkstore.sync

logging.disable()
print(alkstore.sync.open("mem://").queue("mail").enqueue(1))
"""


def test_a_store_that_was_dropped_is_closed_at_the_end_of_the_process() -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", DROPPED], capture_output=True, text=True, timeout=60, check=True
    )

    assert (ended.stdout, ended.stderr) == ("1\n", "")
