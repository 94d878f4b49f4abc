"""The Python files that the demo indexes, and what it finds out about one. Pure, so that it runs in another process."""

import ast
import sysconfig
import tokenize
from pathlib import Path
from typing import Final, TypedDict

from alkstore.errors import InvalidArgument

__all__ = ["BROKEN", "UNREADABLE", "Facts", "find_sources", "parse", "standard_library", "write_broken"]

BROKEN: Final = {
    "broken_syntax.py": b"def half(:\n    return\n",
    "broken_encoding.py": b"name = '\xff\xfe'\n",
    "broken_null.py": b"value = 1\x00\n",
}
"""Files that the demo adds itself, so that retries and dead jobs are always to be seen."""

UNREADABLE: Final = (SyntaxError, ValueError, OSError, RecursionError, MemoryError)
"""What `parse` raises for a file that cannot be read as Python; the last two come of nesting that is too deep."""


class Facts(TypedDict):
    """What is published about a file."""

    path: str
    lines: int
    functions: int
    classes: int
    longest: str
    longest_lines: int


def standard_library() -> Path:
    """Give the folder of the running Python's own library."""
    return Path(sysconfig.get_path("stdlib"))


def find_sources(root: Path | None) -> tuple[Path, list[Path]]:
    """List the Python files of a tree, the standard library's by default.

    Raises:
        InvalidArgument: There is no such folder, or no Python file in it.
    """
    folder = standard_library() if root is None else root
    if not folder.is_dir():
        raise InvalidArgument(f"path must be a folder with Python files, got {str(folder)!r}")
    # The standard library's own tests hold files that are broken on purpose, thousands of lines each.
    skipped = {"__pycache__"} if root is not None else {"__pycache__", "site-packages", "test", "tests"}
    found = sorted(
        path
        for path in folder.rglob("*.py")
        if path.is_file() and not skipped.intersection(path.relative_to(folder).parts)
    )
    if not found:
        raise InvalidArgument(f"path must hold at least one .py file, got {str(folder)!r}")
    return folder, found


def write_broken(folder: Path) -> list[Path]:
    """Write the broken files into a folder of the demo's own."""
    paths = []
    for name, content in BROKEN.items():
        path = folder / name
        path.write_bytes(content)
        paths.append(path)
    return paths


def parse(path: str) -> Facts:
    """Read and parse one file.

    Raises:
        One of `UNREADABLE`: It cannot be read as Python, and why.
    """
    with tokenize.open(path) as source:  # honours the file's coding line, as Python itself does
        text = source.read()
    tree = ast.parse(text, path)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    longest = max(functions, key=_length, default=None)
    return Facts(
        path=path,
        lines=len(text.splitlines()),
        functions=len(functions),
        classes=sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree)),
        longest="" if longest is None else longest.name,
        longest_lines=0 if longest is None else _length(longest),
    )


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1
