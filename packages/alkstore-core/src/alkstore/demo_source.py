"""What the demo finds out about one Python file. Pure, so that it runs in another process."""

import ast
import sysconfig
import tokenize
from pathlib import Path
from typing import Final, TypedDict

__all__ = ["BROKEN", "Facts", "parse", "standard_library", "write_broken"]

BROKEN: Final = {
    "broken_syntax.py": b"def half(:\n    return\n",
    "broken_encoding.py": b"name = '\xff\xfe'\n",
    "broken_null.py": b"value = 1\x00\n",
}
"""Files that the demo adds itself, so that retries and dead jobs are always to be seen."""


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
        SyntaxError, ValueError, OSError: It cannot be read as Python, and why.
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
