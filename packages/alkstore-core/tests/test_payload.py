import contextlib
import dataclasses
import functools
import gc
import json
import math
import typing
from collections.abc import Callable, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alkstore import payload
from alkstore.errors import CodecError, InvalidArgument, InvalidName

ENCODABLE = st.text(st.characters(exclude_categories=["Cs"]))
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ENCODABLE
)
JSON = st.recursive(SCALAR, lambda child: st.lists(child) | st.dictionaries(ENCODABLE, child), max_leaves=20)
WITH_TUPLES = st.recursive(
    SCALAR,
    lambda child: st.lists(child).map(tuple) | st.lists(child) | st.dictionaries(ENCODABLE, child),
    max_leaves=20,
)

NEST_256 = b"[" * 256 + b"]" * 256
DEEPEST = payload.decode(NEST_256)
DEEPEST_OF_TUPLES: object = functools.reduce(lambda inner, _: (inner,), range(255), typing.cast(object, ()))


@dataclasses.dataclass
class Order:
    id: int
    tags: list[str]


class Part(msgspec.Struct, forbid_unknown_fields=True):
    id: int


class Line(typing.TypedDict):
    id: int


@dataclasses.dataclass
class Even:
    id: int

    def __post_init__(self) -> None:
        if self.id % 2:
            raise LookupError("odd")


def as_lists(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [as_lists(child) for child in value]
    if isinstance(value, dict):
        return {key: as_lists(child) for key, child in value.items()}
    return value


def is_same(one: object, other: object) -> bool:
    """Equal, and of equal types at every depth, and -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return one == other


def with_frames_left(frames: int, call: Callable[[], object]) -> object:
    """Call where about so many frames fit below the interpreter's limit."""

    def descend(depth: int) -> object:
        return call() if depth == 0 else descend(depth - 1)

    gc.disable()  # or what other tests left is collected down there, and has no frame for its end
    try:
        return descend(deepest() - frames)
    finally:
        gc.enable()


def deepest() -> int:
    """How many calls fit below the frame of the caller's caller."""

    def descend(depth: int) -> int:
        try:
            return descend(depth + 1)
        except RecursionError:
            return depth

    return descend(0)


# ---------------------------------------------------------------- encode and decode


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, b"null"),
        (True, b"true"),
        (False, b"false"),
        (0, b"0"),
        (-7, b"-7"),
        (2**53 + 1, b"9007199254740993"),
        (2**64, b"18446744073709551616"),
        (2**200, b"1606938044258990275541962092341162602522202993782792835301376"),
        (-(2**63) - 1, b"-9223372036854775809"),
        (0.0, b"0.0"),
        (-0.0, b"-0.0"),
        (1.0, b"1.0"),
        (0.1, b"0.1"),
        (1e16, b"1e16"),
        (1e22, b"1e22"),
        (0.00001, b"0.00001"),
        (5e-324, b"5e-324"),
        (1.7976931348623157e308, b"1.7976931348623157e308"),
        ("", b'""'),
        ("a\0b", b'"a\\u0000b"'),
        ('"\\\n\t\x1f', b'"\\"\\\\\\n\\t\\u001f"'),
        ("\x7f", b'"\x7f"'),
        ("/", b'"/"'),
        ("é", b'"\xc3\xa9"'),
        ("\u2028", b'"\xe2\x80\xa8"'),
        ("🦆", b'"\xf0\x9f\xa6\x86"'),
        ([], b"[]"),
        ((), b"[]"),
        ({}, b"{}"),
        ([[], {}, [None]], b"[[],{},[null]]"),
        ((1, (2.0, [True])), b"[1,[2.0,[true]]]"),
        ({"b": 1, "a": {"é": None}, "": 2}, b'{"b":1,"a":{"\xc3\xa9":null},"":2}'),
        ([1, 1.0, True], b"[1,1.0,true]"),
    ],
    ids=repr,
)
def test_a_json_value_has_one_encoding(value: object, data: bytes) -> None:
    assert payload.encode(value) == data
    assert is_same(payload.decode(data), as_lists(json.loads(data)))


@given(JSON)
def test_a_json_value_reads_back_the_same(value: object) -> None:
    assert is_same(payload.decode(payload.encode(value)), value)


@given(WITH_TUPLES)
def test_a_tuple_is_encoded_and_reads_back_as_a_list(value: object) -> None:
    data = payload.encode(value)

    assert data == payload.encode(as_lists(value))
    assert is_same(payload.decode(data), as_lists(value))


@pytest.mark.parametrize("megabytes", [1, 8])
def test_a_large_text_passes(megabytes: int) -> None:
    text = "é" * (megabytes * 2**19)

    assert payload.decode(payload.encode({"a": text})) == {"a": text}


def test_a_long_text_of_digits_is_no_long_int() -> None:
    value = {"digits": "7" * 5000, "list": [1, 2, 3]}

    assert payload.decode(payload.encode(value)) == value


def test_a_later_change_of_the_value_changes_no_bytes() -> None:
    value = {"a": [1]}

    data = payload.encode(value)
    value["a"].append(2)

    assert data == b'{"a":[1]}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nul",
        b"NaN",
        b"1 2",
        b"1e400",
        b"\xff",
        b'"\xff"',
        b'"\\ud800"',
        b'"a\0"',
        b"9" * 5000,
        b"[" * 9999,
    ],
    ids=lambda data: repr(data[:8]),
)
def test_bytes_that_are_no_json_are_a_codec_error(data: bytes) -> None:
    with pytest.raises(CodecError, match="payload must be JSON") as caught:
        payload.decode(data)

    assert caught.value.__cause__ is not None


# ---------------------------------------------------------------- decode_as


@pytest.mark.parametrize(
    ("data", "type_", "value"),
    [
        (b'{"id":1,"tags":["a"]}', Order, Order(1, ["a"])),
        (b'{"id":1}', Part, Part(1)),
        (b'{"id":1}', Line, {"id": 1}),
        (b"[1,2]", tuple[int, int], (1, 2)),
        (b"null", type(None), None),
        (b'{"id":2}', Even, Even(2)),
        (b"[1]", typing.Annotated[list[int], ["unhashable"]], [1]),
    ],
    ids=repr,
)
def test_a_payload_reads_as_a_type_that_it_fits(data: bytes, type_: type, value: object) -> None:
    assert payload.decode_as(data, type_) == value


@pytest.mark.parametrize(
    ("data", "type_"),
    [
        (b'{"id":"1","tags":[]}', Order),
        (b'{"id":1}', Order),
        (b'{"id":1,"more":2}', Part),
        (b'{"id":1.5}', Line),
        (b"1", str),
        (b'"1"', int),
        (b"{", int),
        (b'{"id":1}', Even),
        (b"[" * 9999, list[object]),
    ],
    ids=lambda value: repr(value)[-30:],
)
def test_a_payload_that_does_not_fit_a_type_is_a_codec_error(data: bytes, type_: type) -> None:
    with pytest.raises(CodecError, match="payload must fit") as caught:
        payload.decode_as(data, type_)

    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("type_", [5, "Nowhere", list[int] | set[int]], ids=repr)
def test_a_type_that_msgspec_cannot_read_is_an_invalid_argument(type_: type) -> None:
    with pytest.raises(InvalidArgument, match="payload type must be one that msgspec reads"):
        payload.decode_as(b"1", type_)


# ---------------------------------------------------------------- the caller's stack


@pytest.mark.parametrize(
    "call",
    [
        lambda: payload.decode(NEST_256),
        lambda: payload.decode_as(NEST_256, list[object]),
        lambda: payload.encode(DEEPEST),
        lambda: payload.encode(DEEPEST_OF_TUPLES),
    ],
    ids=["decode", "decode_as", "encode", "encode a tuple"],
)
def test_the_deepest_payload_passes_at_any_depth_of_the_stack(call: Callable[[], object]) -> None:
    expected = call()

    for frames in range(8, 400):
        assert with_frames_left(frames, call) == expected


def test_what_is_no_json_is_refused_at_any_depth_of_the_stack() -> None:
    for frames in range(8, 400):
        with pytest.raises(CodecError):
            with_frames_left(frames, lambda: payload.decode(NEST_256[:-1]))


@pytest.mark.parametrize("frames", range(8))
def test_a_caller_without_a_frame_left_gets_the_payload_or_a_recursion_error(frames: int) -> None:
    with contextlib.suppress(RecursionError):
        assert with_frames_left(frames, lambda: payload.decode(NEST_256)) == DEEPEST
    with contextlib.suppress(RecursionError):
        assert with_frames_left(frames, lambda: payload.decode_as(NEST_256, list[object])) == DEEPEST
    with contextlib.suppress(RecursionError):
        assert with_frames_left(frames, lambda: payload.encode(DEEPEST_OF_TUPLES)) == NEST_256


# ---------------------------------------------------------------- headers


@given(st.dictionaries(st.text("abé-🦆 ", min_size=1).filter(str.strip), ENCODABLE, max_size=5))
def test_headers_read_back_the_same_and_cannot_be_changed(headers: dict[str, str]) -> None:
    read = payload.decode_headers(payload.encode_headers(headers))

    assert read == headers
    with pytest.raises(TypeError):
        read["a"] = "b"  # type: ignore[index]


@pytest.mark.parametrize("headers", [None, {}])
def test_no_headers_are_an_empty_object(headers: Mapping[str, str] | None) -> None:
    assert payload.encode_headers(headers) == b"{}"
    assert payload.decode_headers(b"{}") == {}


@pytest.mark.parametrize(
    "headers", ["a", [("a", "b")], 5, {"a": 1}, {"a": None}, {"a": b"b"}, {"a": "\ud800"}, {1: "a"}], ids=repr
)
def test_headers_map_str_to_encodable_str(headers: Mapping[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"^header"):
        payload.encode_headers(headers)


@pytest.mark.parametrize("name", ["", " ", "a\0", "\ud800", "x" * 256], ids=lambda name: repr(name)[:9])
def test_a_header_has_a_legal_local_name(name: str) -> None:
    with pytest.raises(InvalidName):
        payload.encode_headers({name: "a"})


def test_a_header_may_begin_with_the_reserved_prefix_and_hold_nul() -> None:
    headers = {"__alkstore_x": "a\0b", "traceparent": ""}

    assert payload.decode_headers(payload.encode_headers(headers)) == headers


def test_headers_have_8_kib_at_most() -> None:
    longest = "x" * (payload.HEADERS_BYTES - len('{"a":""}'))

    assert len(payload.encode_headers({"a": longest})) == payload.HEADERS_BYTES
    with pytest.raises(InvalidArgument, match="headers must be at most 8192 bytes as JSON, got 8193"):
        payload.encode_headers({"a": longest + "x"})


@pytest.mark.parametrize("data", [b"", b"[]", b'{"a":1}', b"{"])
def test_stored_headers_that_are_no_texts_are_a_codec_error(data: bytes) -> None:
    with pytest.raises(CodecError, match="headers must be a JSON object of texts"):
        payload.decode_headers(data)
