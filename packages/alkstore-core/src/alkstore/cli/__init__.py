"""The ``alkstore`` command."""

import sys

__all__ = ["INTERRUPTED", "main"]

INTERRUPTED = 130
"""What a shell expects of a command that Ctrl-C ended: 128 + SIGINT."""


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
