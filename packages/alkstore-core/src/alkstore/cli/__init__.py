"""The ``alkstore`` command."""

import sys
from typing import Final

__all__ = ["FAILED", "INTERRUPTED", "READER_GONE", "UNREACHABLE", "USAGE", "main"]

FAILED: Final = 1
"""The command did its work, and its answer is no: a job that is not there, a finding, a bad line."""

USAGE: Final = 2
"""What was asked for cannot be: an option, a name, a URL."""

UNREACHABLE: Final = 3
"""The storage cannot be reached or used as it is."""

INTERRUPTED: Final = 130
"""What a shell expects of a command that Ctrl-C ended: 128 + SIGINT."""

READER_GONE: Final = 141
"""What a shell expects of a command whose reader went away, as in ``| head``: 128 + SIGPIPE."""


def main() -> None:
    """Run the command line; a missing extra is named instead of a traceback."""
    try:
        from alkstore.cli.command import command  # the extra may be missing, and importing it takes a while
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"the alkstore command needs {error.name}: pip install 'alkstore-core[cli]'")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command()
