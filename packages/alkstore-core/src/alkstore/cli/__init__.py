"""The ``alkstore`` command."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; a missing extra is named instead of a traceback."""
    try:
        from alkstore.cli.command import command  # the extra may be missing
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"the alkstore command needs {error.name}: pip install 'alkstore-core[cli]'")
    command()
