"""The walk that decides what a JSON value is, when encoding and comparing alone could not."""

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn, cast

from alkstore.errors import CodecError, show

__all__ = ["MAX_DEPTH", "MAX_DIGITS", "is_encodable", "plain"]

MAX_DEPTH: Final = 256
"""Greatest number of containers within each other: well under what any decoder's stack bears."""

MAX_DIGITS: Final = 640
"""Greatest number of digits of an int: the lowest bound that ``sys.set_int_max_str_digits`` can set anywhere."""

_TOO_LARGE: Final = 10**MAX_DIGITS

_SHOWN_PATH: Final = 200
"""How many characters of a path a message shows; 256 keys would drown the rest."""


def plain(value: object, *, has_room: bool = False) -> object:
    """Copy a JSON value into exact builtin types: tuples and their subclasses become lists.

    Takes subclasses that equal their builtin copy (OrderedDict, NamedTuple), but no Enum and no dataclass.

    Args:
        has_room: The stack is fresh, so a recursion without end is the value's own.

    Raises:
        CodecError: It is not JSON; the message names the path to the first value that is not.
        RecursionError: The caller's stack or a method of the value leaves no room, and ``has_room`` is not set.
    """
    return _Walk(has_room).copy(value)


def is_encodable(text: str) -> bool:
    """Whether a text has no lone surrogate."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


class _Open:
    """A container between the root and where the walk stands."""

    __slots__ = ("children", "key", "node", "put")

    def __init__(
        self, node: object, children: Iterable[tuple[Any, object]], put: Callable[[Any, object], None]
    ) -> None:
        self.node = node
        self.children: Iterator[tuple[Any, object]] = iter(children)
        self.put = put
        self.key: str | int = 0


class _Walk:
    """One pass over one value, with a stack of its own: the interpreter's may be nearly used up."""

    def __init__(self, has_room: bool) -> None:
        self._has_room = has_room
        self._path: list[_Open] = []
        self._inside: set[int] = set()

    def copy(self, value: object) -> object:
        root = self._take(value)
        while self._path:
            self._go_on(self._path[-1])
        return root

    def _go_on(self, top: _Open) -> None:
        for key, child in top.children:
            top.key = key
            top.put(key, self._take(child))
            if self._path[-1] is not top:
                return
        self._inside.discard(id(top.node))
        self._path.pop()

    def _take(self, value: object) -> object:
        if value is None or value is True or value is False:
            return value
        copy = self._builtin(value, "must be JSON")
        if isinstance(copy, str):
            if not is_encodable(copy):
                self._refuse(f"must not contain a lone surrogate, got {show(copy)}")
        elif isinstance(copy, float):
            if not math.isfinite(copy):
                self._refuse(f"must be finite, got {show(copy)}")
        elif isinstance(copy, int):
            if abs(copy) >= _TOO_LARGE:
                self._refuse(f"must have at most {MAX_DIGITS} digits, got an int of {copy.bit_length()} bits")
        else:
            return self._open(value, copy)
        return copy

    def _builtin(self, value: object, problem: str) -> object:
        try:
            copy = _builtin(value)
        except Exception as error:  # the methods of a subclass of dict, list, … may raise anything
            if isinstance(error, RecursionError) and not self._has_room:
                raise
            raise CodecError(self._message(f"{problem}, got {_typed(value)}: {show(error)}")) from error
        if copy is None:
            self._refuse(f"{problem}, got {_typed(value)}; convert it with msgspec.to_builtins first")
        return copy

    def _open(self, node: object, copy: object) -> object:
        if id(node) in self._inside:
            self._refuse("must not contain itself")
        if len(self._path) >= MAX_DEPTH:
            self._refuse(f"must have at most {MAX_DEPTH} nested containers")
        self._inside.add(id(node))
        if isinstance(copy, dict):
            mapping: dict[str, object] = {}
            self._path.append(_Open(node, self._keyed(copy), mapping.__setitem__))
            return mapping
        sequence: list[object] = []
        self._path.append(_Open(node, enumerate(cast(list[object], copy)), sequence.insert))
        return sequence

    def _keyed(self, copy: dict[object, object]) -> Iterable[tuple[str, object]]:
        keyed: dict[str, object] = {}
        for key, child in copy.items():
            text = self._builtin(key, "must have str keys only")
            if not isinstance(text, str):
                self._refuse(f"must have str keys only, got {show(key)}")
            if not is_encodable(text):
                self._refuse(f"must not have a lone surrogate in a key, got {show(text)}")
            if (
                text in keyed
            ):  # possible for a subclass of str with a hash of its own; one child would be lost
                self._refuse(f"must not have a key twice, got {show(text)}")
            keyed[text] = child
        return keyed.items()

    def _refuse(self, problem: str) -> NoReturn:
        raise CodecError(self._message(problem))

    def _message(self, problem: str) -> str:
        path = "$" + "".join(_segment(opened.key) for opened in self._path)
        if len(path) > _SHOWN_PATH:
            path = f"{path[: _SHOWN_PATH // 2]}…{path[-_SHOWN_PATH // 2 :]}"
        return f"payload at {path} {problem}"


def _typed(value: object) -> str:
    # A str-based Enum shows itself as its text, which by itself would look like a legal value.
    return f"{show(value)} of type {type(value).__name__}"


def _segment(key: str | int) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{show(key)}]"


_READS: Final[tuple[tuple[type, Callable[[Any], object]], ...]] = (
    # str() and int() would ask a subclass; these give the exact value whatever it overrides.
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    # These ask it, since its own iteration is the order in which it shows itself (an OrderedDict's differs).
    (dict, dict),
    (list, list),
    (tuple, list),
)


def _builtin(value: object) -> object:
    """Give an exact str, int, float, list or dict (one level deep) that equals the value, or None."""
    # The type is asked and not the value: a proxy may claim any class.
    kind = type(value)
    for base, read in _READS:
        if issubclass(kind, base):
            if kind is base:
                return read(value)
            return None if _is_record(kind) else _equal_copy(value, base, read)
    return None


def _is_record(kind: type) -> bool:
    return issubclass(kind, enum.Enum) or dataclasses.is_dataclass(kind)


def _equal_copy(value: object, base: type, read: Callable[[Any], object]) -> object:
    copy = read(value)
    return copy if base(copy) == value else None
