"""Where a file was when it was opened: another one that stands there since is not to be taken for it."""

import errno
import os
from typing import NamedTuple

from alkstore_sqlite.errors import FileReplaced

__all__ = ["Place"]


class Place(NamedTuple):
    """A file's path and what stood there when it was opened."""

    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, path: str) -> "Place":
        """Look at a path. Never opens the file: to close it again would drop SQLite's locks on it."""
        found = os.stat(path)
        return cls(path, found.st_dev, found.st_ino)

    def is_there(self) -> bool:
        """Whether the path still leads to the file that was opened."""
        try:
            self.check()
        except FileReplaced:
            return False
        return True

    def check(self) -> None:
        """Make sure that the path still leads to the file that was opened.

        Raises:
            FileReplaced: It does not.
        """
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise FileReplaced(self.path) from error
        if found.st_ino != self.inode or found.st_dev != self.device:
            raise FileReplaced(self.path) from OSError(errno.ESTALE, os.strerror(errno.ESTALE), self.path)
