"""The SQL of an engine that has any: named statements in ``sql/<area>.sql``, so that no Python file holds them.

A file is comments for its reader, then statements, each under its name and a line that says what it is for::

    -- name: head
    -- The greatest offset of a stream.
    SELECT head FROM stream WHERE name = ?1;
"""

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import takewhile
from types import MappingProxyType
from typing import Final

from alkstore.errors import show

__all__ = ["load", "read", "split"]

_HEADING: Final = re.compile(r"^--[ \t]*name:(.*)$", re.MULTILINE)
_NAME: Final = re.compile(r"[a-z_]+")

_TOKEN: Final = re.compile(
    r"""
      (?P<comment> ^[ \t]*--[^\n]*\n? | [ \t]*--[^\n]* | /\*.*?\*/ )
    | (?P<quoted>  [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
                 | \$(?P<tag>(?:[^\W\d]\w*)?)\$ .*? \$(?P=tag)\$ )
    | (?P<word>    \w[\w$]* )
    | (?P<end>     ; )
    | (?P<open>    ['"] | /\* | \$(?:[^\W\d]\w*)?\$ )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
"""SQL as far as it must be understood to find its ends. SQLite and PostgreSQL differ in nothing that matters here."""

_ROUTINE: Final = re.compile(r"CREATE\b[^;()]*?\b(TRIGGER|FUNCTION|PROCEDURE)\b", re.IGNORECASE)


class _Named(dict[str, str]):
    """Statements by name, and where they came from: a mistyped name must say what there is."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def __missing__(self, name: str) -> str:
        raise KeyError(f"no statement {show(name)} in {self.where}, there are: {', '.join(self)}")


def load(package: str, area: str) -> Mapping[str, str]:
    """Read an area's statements from an engine's package, in their order, without comments and the closing ``;``.

    The mapping is read-only; asking it for a name that it lacks is a KeyError that lists those that it has.

    Raises:
        ValueError: There is no such area; or a statement has no name, a name that is not of ``a-z`` and ``_``, a
            name twice, no line of purpose, no text, or not the one ``;`` at its end. The text says where.
    """
    folder = resources.files(package) / "sql"
    where = f"{package}/sql/{area}.sql"
    file = folder / f"{area}.sql"
    if not file.is_file():
        areas = sorted(_areas(folder))
        raise ValueError(f"no area {show(area)}: {where} is missing, there are: {', '.join(areas) or 'none'}")
    head, *parts = _HEADING.split(read(file))
    if split(f"{head};", where):
        raise ValueError(f"{where}: a statement has no name; put '-- name: …' before it")
    named = _Named(where)
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        name = heading.strip()
        if not _NAME.fullmatch(name):
            raise ValueError(f"{where}: a statement's name must be of a-z and _, got {show(name)}")
        if name in named:
            raise ValueError(f"{where}: {name} is there twice")
        named[name] = _statement(body, f"{where}: {name}")
    return MappingProxyType(named)


def _areas(folder: Traversable) -> Iterator[str]:
    if folder.is_dir():
        yield from (file.name.removesuffix(".sql") for file in folder.iterdir() if file.name.endswith(".sql"))


def _statement(body: str, where: str) -> str:
    lines = body.removeprefix("\n").split("\n")
    purpose = takewhile(lambda line: line.startswith("--"), lines)
    if not any(line.strip("- \t") for line in purpose):
        raise ValueError(f"{where} has no purpose; say below the name what it is for: '-- …'")
    found = split(body, where)
    if len(found) != 1:
        raise ValueError(f"{where} must be one statement, got {len(found)}")
    return found[0]


def read(file: Traversable) -> str:
    """Give a file's text with the newlines of every other system made line feeds: a checkout may have changed them."""
    return file.read_bytes().decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def split(text: str, where: str) -> tuple[str, ...]:
    """Part SQL at its closing ``;``, which they lose, and drop its comments and what is empty.

    A ``;`` in a string, a quoted name, a dollar-quoted body, or between BEGIN and END of a trigger or a routine
    closes nothing. ``where`` begins the messages.

    Raises:
        ValueError: Something is left open: a quote, a comment, a BEGIN, or the last statement.
    """
    statements: list[str] = []
    current = ""
    depth = 0
    for token in _TOKEN.finditer(text):
        kind, found = token.lastgroup, token.group()
        if kind == "open":
            line = text.count("\n", 0, token.start()) + 1
            raise ValueError(f"{where}: {found} is not closed (line {line} of its text)")
        if kind == "end" and depth == 0:
            statements.append(current.strip())
            current = ""
            continue
        if kind == "word":
            depth += _nesting(found, current)
        current += _without_comment(found) if kind == "comment" else found
    if current.strip():
        raise ValueError(
            f"{where}: the last statement is not ended by ';', it begins {show(current.strip())}"
        )
    return tuple(statement for statement in statements if statement)


def _nesting(word: str, before: str) -> int:
    """Say whether a word opens (1) or closes (-1) a block whose ``;`` are its own: only routines have such blocks."""
    change = {"BEGIN": 1, "CASE": 1, "END": -1}.get(word.upper(), 0)
    return change if change and _ROUTINE.match(before.lstrip()) else 0


def _without_comment(comment: str) -> str:
    # One that stands between two words parts them; one that has a line to itself takes the line along.
    return " " if comment.startswith("/*") else ""
