"""Payloads, headers and error texts: what may be stored, and the exact bytes that are.

The law of payloads: a value is accepted exactly if decoding its encoding gives an equal value, tuples
counting as lists. msgspec alone takes more than that (NaN becomes null, sets become lists, a key 1 becomes
"1"). So a value is encoded, decoded and compared; what does not pass at once is walked, and the walk decides
or names the path.
"""

import _thread
import functools
import marshal
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar, cast

import msgspec

from alkstore import names
from alkstore.errors import CodecError, InvalidArgument, show
from alkstore.json_value import MAX_DEPTH, MAX_DIGITS, is_encodable, plain

__all__ = [
    "HEADERS_BYTES",
    "LAST_ERROR_BYTES",
    "RETRY_ERROR_BYTES",
    "check_type",
    "decode",
    "decode_as",
    "decode_at_once",
    "decode_headers",
    "encode",
    "encode_headers",
    "error_text",
    "misfit",
]

HEADERS_BYTES: Final = 8_192
"""Greatest size of encoded headers."""

LAST_ERROR_BYTES: Final = 16_384
"""Greatest size of ``last_error`` in bytes of UTF-8."""

RETRY_ERROR_BYTES: Final = 1_024
"""Greatest size of ``retry_error`` in bytes of UTF-8."""

_A = TypeVar("_A")
_T = TypeVar("_T")

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
decode_at_once: Final = _decode
"""As `decode`, but for how it fails: in any way; for who decodes by the hundred thousand, and asks `decode` then."""

# ---------------------------------------------------------------- encode

_SURELY_SMALL: Final = 2 * MAX_DEPTH
"""Bytes of encoding that can hold neither over 256 nested containers nor an int of over 640 digits."""

_IS_STACK_BLIND: Final = sys.platform == "emscripten"
"""Whether a value that is nested too deeply ends the process: in WebAssembly no C code knows how much stack is left, so
none may see a value that the walk has not."""

_MARSHAL_VERSION: Final = 2
"""The last version of marshal's format without a table of shared objects, which would only cost time here."""

_DIGITS_TO_0: Final = bytes.maketrans(b"123456789", b"0" * 9)
_TOO_MANY_DIGITS: Final = b"0" * (MAX_DIGITS + 1)
_CONTAINERS: Final = frozenset({dict, list})


def encode(value: object) -> bytes:
    """Give the one encoding of a JSON value: compact UTF-8 JSON, keys in their order, non-ASCII unescaped.

    Args:
        value: None, bool, int, float, str, list, tuple, or dict with str keys, and what these hold.

    Raises:
        CodecError: Anything else, a float that is not finite, a lone surrogate, a cycle, more than 256 nested
            containers, an int of more than 640 digits; the message names the path to it.

    Cost: about 1 µs for a small value. Rows: PAY-01, PAY-02, PAY-03.
    """
    if _IS_STACK_BLIND:
        return _encode(plain(value))
    try:
        data = _encode(value)
        if _decode(data) == value:
            # An Enum member equals its value, and a dataclass decides what it equals; marshal refuses both,
            # as it takes exact types only.
            marshal.dumps(value, _MARSHAL_VERSION)  # type: ignore[arg-type]  # whether it fits is the question
            if len(data) <= _SURELY_SMALL or _is_small(data, value):
                return data
    except (
        Exception
    ):  # it may have come from the value's own methods: the walk finds out what is wrong, and where
        pass
    return _encode_walked(value)


def _is_small(data: bytes, value: object) -> bool:
    """Whether ints and nesting are within bounds; False too if the digits of a text look like an int's."""
    if _TOO_MANY_DIGITS in data.translate(_DIGITS_TO_0):
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node) if type(child) in _CONTAINERS]
        if not level:
            return True
    return False


def _children(node: object) -> Iterable[object]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


def _encode_walked(value: object) -> bytes:
    try:
        return _encode(plain(value))
    except RecursionError:
        return _with_room(_encode_with_room, value)


def _encode_with_room(value: object) -> bytes:
    return _encode(plain(value, has_room=True))


# ---------------------------------------------------------------- decode


def decode(data: bytes) -> object:
    """Read stored bytes as a JSON value, at any depth of the caller's stack.

    Raises:
        CodecError: They are no JSON.

    Rows: PAY-02, PAY-03, PAY-05.
    """
    try:
        try:  # as `_with_stack`: readers decode by the hundred thousand, and are spared a call each
            return _decode(data)
        except RecursionError:
            return _with_room(_decode, data)
    except ValueError as error:
        raise CodecError(f"payload must be JSON, got {show(data)}: {error}") from error


def decode_as(data: bytes, type_: type[_T]) -> _T:
    """Read stored bytes as a value of a type that msgspec knows (dataclass, TypedDict, Struct, …), strictly.

    Raises:
        CodecError: They do not fit; the message says where.
        InvalidArgument: msgspec cannot read into this type.

    Rows: PAY-05.
    """
    reader = _reader(type_)
    try:
        return _with_stack(reader, data)
    except RecursionError:  # the caller has no frame left
        raise
    except Exception as error:  # a type's own __post_init__ may raise anything to say that it does not fit
        raise misfit(type_, error) from error


def misfit(type_: object, error: Exception) -> CodecError:
    """Say what does not fit, without the payload: it is stored beside the error, and errors are logged."""
    name = type_.__qualname__ if isinstance(type_, type) else show(type_)
    says = str(error) if isinstance(error, (ValueError, msgspec.MsgspecError)) else ""
    return CodecError(f"payload must fit {name}: {says or show(error)}")


def check_type(type_: object) -> None:
    """Refuse a type that `decode_as` cannot read into, before there is anything to read.

    Raises:
        InvalidArgument: msgspec cannot read into this type.
    """
    _reader(cast(type[object], type_))


def _reader(type_: type[_T]) -> Callable[[bytes], _T]:
    try:
        hash(type_)
    except TypeError:  # legal all the same, an Annotated with a list for one; only the cache cannot hold it
        return _new_reader(type_)
    return _cached_reader(type_)  # type: ignore[arg-type]  # mypy takes type[T] for unhashable


def _new_reader(type_: type[_T]) -> Callable[[bytes], _T]:
    try:
        return _with_stack(lambda type_: msgspec.json.Decoder(type_), type_).decode
    except RecursionError:  # the caller has no frame left
        raise
    except Exception as error:  # TypeError by msgspec, NameError by an annotation that cannot be resolved, …
        raise InvalidArgument(
            f"payload type must be one that msgspec reads, got {show(type_)}: {show(error)}"
        ) from error


_cached_reader = functools.lru_cache(maxsize=256)(_new_reader)


def _with_stack(code: Callable[[_A], _T], argument: _A) -> _T:
    try:
        return code(argument)
    except RecursionError:
        return _with_room(code, argument)


def _with_room(code: Callable[[_A], _T], argument: _A) -> _T:
    """Code on a fresh stack, or raise ValueError if that is not deep enough either."""
    # The interpreter counts the caller's frames too, so near its limit a payload that was accepted elsewhere
    # could not be read. To raise the limit for a moment would raise it for all threads, and one that recursed past
    # it meanwhile would abort the process. Not threading.Thread: its start takes more frames than may be left.
    done = _thread.allocate_lock()
    done.acquire()
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(code(argument))
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    done.acquire()
    if results:
        return results[0]
    if isinstance(errors[0], RecursionError):
        raise ValueError("it is nested too deeply") from errors[0]
    raise errors[0]


# ---------------------------------------------------------------- headers

_NO_HEADERS: Final = b"{}"
_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})
_decode_headers: Final = msgspec.json.Decoder(dict[str, str]).decode


def encode_headers(headers: Mapping[str, str] | None) -> bytes:
    """Give the encoding of headers: a JSON object, ``{}`` for none.

    Raises:
        InvalidArgument: No mapping of str to str, a lone surrogate in a value, or over 8 KiB when encoded.
        InvalidName: A header's name is not a legal local name.

    Rows: PAY-08, NAME-04.
    """
    if headers is None:
        return _NO_HEADERS
    if not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers must be a mapping of str to str, got {show(headers)}")
    data = _encode(
        {names.local(name, "header name"): _header(name, value) for name, value in headers.items()}
    )
    if len(data) > HEADERS_BYTES:
        raise InvalidArgument(f"headers must be at most {HEADERS_BYTES} bytes as JSON, got {len(data)}")
    return data


def _header(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"header {show(name)} must be a str, got {show(value)}")
    text = str.__str__(value)
    if not is_encodable(text):
        raise InvalidArgument(f"header {show(name)} must not contain a lone surrogate, got {show(text)}")
    return text


def decode_headers(data: bytes) -> Mapping[str, str]:
    """Read stored headers as a mapping that cannot be changed.

    Raises:
        CodecError: They are no JSON object of texts.

    Rows: PAY-08.
    """
    if data == _NO_HEADERS:
        return _EMPTY
    try:
        return MappingProxyType(_with_stack(_decode_headers, data))
    except ValueError as error:
        raise CodecError(f"headers must be a JSON object of texts, got {show(data)}: {error}") from error


# ---------------------------------------------------------------- error texts

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
"""What some engine's text column refuses."""

_FRAMES: Final = 32
"""How many innermost frames of a traceback are looked at: more never fit into an error text."""


def error_text(error: str | BaseException | None, default: str, limit: int) -> str:
    """Give the text of an error as it is stored: any text is accepted, none is lost but by the cut.

    Args:
        error: A text, kept; an exception: ``module.Type: message``, then the end of its traceback; None:
            ``default``.
        limit: Greatest size in bytes of UTF-8. A text keeps its beginning, a traceback its end.

    Raises:
        InvalidArgument: Anything else.

    Rows: Q-11, Q-25.
    """
    if error is None:
        return default
    if isinstance(error, str):
        return _cut(str.__str__(error), limit)
    if not isinstance(error, BaseException):
        raise InvalidArgument(f"error must be a str, an exception or None, got {show(error)}")
    head = _cut(_head(error), limit)
    room = limit - len(head.encode()) - 1
    tail = _cut_front(_frames(error), room) if room > 0 else ""
    return f"{head}\n{tail}" if tail else head


def _head(error: BaseException) -> str:
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    try:
        message = str.__str__(str(error))
    except Exception:  # an exception that cannot say what it is about must not keep the outcome from landing
        message = ""
    return f"{name}: {message}" if message else name


def _frames(error: BaseException) -> str:
    try:
        return "".join(traceback.format_tb(error.__traceback__, -_FRAMES)).rstrip("\n")
    except Exception:  # sources are read through import hooks, which may raise anything
        return ""


def _cut(text: str, limit: int) -> str:
    storable = _UNSTORABLE.sub("\ufffd", text[:limit])
    return storable.encode()[:limit].decode("utf-8", "ignore")


def _cut_front(text: str, limit: int) -> str:
    storable = _UNSTORABLE.sub("\ufffd", text[-limit:]).encode()
    if len(text) <= limit and len(storable) <= limit:
        return storable.decode()
    # The first line that is left may be half of one.
    return storable[-limit:].decode("utf-8", "ignore").partition("\n")[2]
