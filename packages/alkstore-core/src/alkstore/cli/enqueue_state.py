"""The file of ``--resume``: how far the lines are in, written after each batch."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from alkstore.cli import USAGE
from alkstore.cli.enqueue_lines import Position, Source
from alkstore.cli.storage import Failure

__all__ = ["State"]

VERSION: Final = 2

WITHOUT_PLACE: Final = 1
"""The version whose files tell neither one schema of a database nor one host in a URL's query from another."""


class State:
    """What is written is whole at every instant: a new file takes the place of the old one."""

    def __init__(
        self, path: Path, place: Mapping[str, str | None], queue: str, sources: Sequence[Source]
    ) -> None:
        self._path = path
        self._of = {
            "version": VERSION,
            **place,
            "queue": queue,
            "files": [source.name for source in sources],
        }

    def read(self) -> Position:
        """Give where to go on; the beginning if there is no file yet.

        Raises:
            Failure: It is of another run, or no such file.
        """
        try:
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            return Position()
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(f"{self._path} cannot be read: {error}", USAGE) from error
        try:
            found = json.loads(text)
            position = Position(**found["position"])
        except (ValueError, TypeError, KeyError) as error:
            raise Failure(f"{self._path} is no state of an enqueue; name another file", USAGE) from error
        if found.get("version") == WITHOUT_PLACE:
            # Taken for this place, it could be of another one, which would never get its lines.
            raise Failure(
                f"{self._path} is of an earlier version of alkstore, which did not write down the schema and host that "
                "its lines went to; finish it with that version, or begin anew with another state file",
                USAGE,
            )
        for name, value in self._of.items():
            if found.get(name) != value:
                raise Failure(
                    f"{self._path} is of a run with {name} {found.get(name)!r}, this one has {value!r}; "
                    "name another state file, or repeat that run's words",
                    USAGE,
                )
        return position

    def write(self, position: Position) -> None:
        """Say that everything before a position is in.

        Raises:
            Failure: It cannot be written.
        """
        new = self._path.with_name(self._path.name + ".new")
        text = json.dumps({**self._of, "position": dataclasses.asdict(position)}, indent=1) + "\n"
        try:
            with open(new, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                # Or a loss of power could leave the new name with nothing behind it.
                os.fsync(file.fileno())
            os.replace(new, self._path)
        except OSError as error:
            raise Failure(f"{self._path} cannot be written: {error.strerror}") from error
