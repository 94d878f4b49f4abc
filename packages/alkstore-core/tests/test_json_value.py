import collections
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import re
import typing
import uuid
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alkstore import payload
from alkstore.errors import CodecError
from alkstore.json_value import MAX_DEPTH, is_encodable

SURROGATE = st.text(st.characters(categories=["Cs"]), min_size=1, max_size=2)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals()
    | st.datetimes()
    | st.uuids()
    | SURROGATE
    | st.frozensets(st.integers()),
    lambda child: (
        st.lists(child)
        | st.lists(child).map(tuple)
        | st.dictionaries(st.text() | st.integers() | SURROGATE, child)
    ),
    max_leaves=8,
)


class Point(typing.NamedTuple):
    x: int
    y: tuple[int, ...]


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Real(float):
    pass


class Rows(list[object]):
    pass


@dataclasses.dataclass
class Record:
    a: int


class Agreeing(Record):
    def __eq__(self, other: object) -> bool:
        return True


@dataclasses.dataclass
class MappingRecord(dict[str, int]):
    a: int = 1


class Frame(msgspec.Struct):
    a: int


class Hostile:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError


class HostileMapping(dict[str, object]):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")


class EndlessMapping(dict[str, object]):
    def __eq__(self, other: object) -> bool:
        return self == other


class Unequal(dict[str, object]):
    def __eq__(self, other: object) -> bool:
        return False


class OneOfMany(str):
    """Equal to the plain text, and in a dict beside it all the same."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is str and str.__eq__(self, other))

    def __hash__(self) -> int:
        return id(self)


class Proxy:
    """Says that it is a str."""

    @property  # type: ignore[misc]  # object's can be written, too
    def __class__(self) -> type:
        return str


def as_lists(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [as_lists(child) for child in value]
    if isinstance(value, dict):
        return {key: as_lists(child) for key, child in value.items()}
    return value


def in_list(child: object) -> object:
    return [child]


def in_tuple(child: object) -> object:
    return (child,)


def in_mapping(child: object) -> object:
    return {"a": child}


def in_rows(child: object) -> object:
    return Rows([child])


def nested(depth: int, inner: object, wrap: Callable[[object], object] = in_list) -> object:
    """Give ``inner`` within so many containers."""
    for _ in range(depth):
        inner = wrap(inner)
    return inner


# ---------------------------------------------------------------- accepted


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (collections.OrderedDict(b=1, a=(2,)), b'{"b":1,"a":[2]}'),
        (collections.defaultdict(list, a=[1]), b'{"a":[1]}'),
        (collections.Counter("aab"), b'{"a":2,"b":1}'),
        (Point(1, (2, 3)), b"[1,[2,3]]"),
        ([Text("a"), Whole(3), Real(2.5), Rows([1])], b'["a",3,2.5,[1]]'),
        ({Text("k"): Text("v")}, b'{"k":"v"}'),
    ],
    ids=repr,
)
def test_a_subclass_that_equals_its_plain_value_is_encoded_as_that(value: object, data: bytes) -> None:
    assert payload.encode(value) == data


def test_an_ordered_mapping_keeps_the_order_that_it_shows() -> None:
    value = collections.OrderedDict(a=1, b=2)
    value.move_to_end("a")

    assert payload.encode(value) == b'{"b":2,"a":1}'


@given(ANYTHING)
def test_whatever_is_accepted_reads_back_equal(value: object) -> None:
    try:
        data = payload.encode(value)
    except CodecError:
        return

    assert payload.decode(data) == json.loads(data) == as_lists(value)


def test_one_container_may_stand_at_two_places() -> None:
    shared = (1, [2])

    assert payload.encode([shared, {"a": shared}]) == b'[[1,[2]],{"a":[1,[2]]}]'


@pytest.mark.parametrize("inner", [1, "x" * 600, []], ids=["short", "long", "empty"])
@pytest.mark.parametrize("wrap", [in_list, in_tuple, in_mapping, in_rows])
def test_256_nested_containers_pass_and_257_do_not(wrap: Callable[[object], object], inner: object) -> None:
    deepest = nested(MAX_DEPTH - (inner == []), inner, wrap)

    assert payload.decode(payload.encode(deepest)) == as_lists(deepest)
    with pytest.raises(CodecError, match="must have at most 256 nested containers"):
        payload.encode(wrap(deepest))


def test_very_deep_nesting_is_refused_as_any_other() -> None:
    with pytest.raises(CodecError, match="must have at most 256 nested containers"):
        payload.encode(nested(100_000, 1))


@pytest.mark.parametrize("sign", [1, -1])
def test_640_digits_pass_and_641_do_not(sign: int) -> None:
    longest = sign * (10**640 - 1)

    assert payload.decode(payload.encode([longest])) == [longest]
    for power in (640, 700, 20_000):
        with pytest.raises(CodecError, match=r"payload at \$\[0\] must have at most 640 digits"):
            payload.encode([sign * 10**power])


# ---------------------------------------------------------------- refused

# By name: pytest would look at the values to name the cases, and some of them bite.
NO_JSON: dict[str, object] = {
    "bytes": b"x",
    "bytearray": bytearray(b"y"),
    "memoryview": memoryview(b"z"),
    "set": {1, 2},
    "frozenset": frozenset({3}),
    "datetime": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "date": dt.date(2026, 1, 1),
    "timedelta": dt.timedelta(1),
    "decimal": decimal.Decimal(1),
    "uuid": uuid.UUID(int=1),
    "complex": 1j,
    "int enum": Number.ONE,
    "str enum": Word.A,
    "dataclass": Record(1),
    "dataclass equal to all": Agreeing(1),
    "dataclass over dict": MappingRecord(),
    "struct": Frame(1),
    "type": object,
    "function": len,
    "range": range(3),
    "iterator": iter([1]),
    "deque": collections.deque([1]),
    "user dict": collections.UserDict(a=1),
    "raw": msgspec.Raw(b"1"),
    "hostile object": Hostile(),
    "dict with failing equality": HostileMapping(),
    "dict with endless equality": EndlessMapping(),
    "dict equal to nothing": Unequal(),
    "proxy": Proxy(),
    "nan": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "nan of a subclass": Real("nan"),
    "surrogate": "\ud800",
    "surrogate within": "a\udfffb",
    "surrogate of a subclass": Text("\ud800"),
}


@pytest.mark.parametrize("kind", NO_JSON)
def test_what_is_no_json_is_refused_wherever_it_stands(kind: str) -> None:
    value = NO_JSON[kind]
    places = {
        "$": value,
        "$[2]": [None, 1.5, value],
        "$.items[3].when": {"items": [0, None, (), {"first": None, "when": value}]},
        "$['a b'][0]": {"a b": (value,)},
    }

    for path, whole in places.items():
        with pytest.raises(CodecError, match=re.escape(f"payload at {path} must ")) as caught:
            payload.encode(whole)
        assert str(caught.value).encode()


@pytest.mark.parametrize(
    "kind", ["bytes", "set", "datetime", "decimal", "uuid", "str enum", "struct", "hostile object"]
)
def test_the_message_points_to_what_converts_objects(kind: str) -> None:
    value = NO_JSON[kind]

    with pytest.raises(
        CodecError, match=f"of type {type(value).__name__}; convert it with msgspec.to_builtins"
    ):
        payload.encode(value)


@pytest.mark.parametrize(
    "key", [1, 1.5, None, True, b"a", (1,), Word.A, uuid.UUID(int=1), dt.date(2026, 1, 1)], ids=repr
)
def test_a_key_that_is_no_str_is_refused_and_not_turned_into_one(key: object) -> None:
    with pytest.raises(CodecError, match=r"payload at \$\.a\[0\] must have str keys only"):
        payload.encode({"a": [{"b": 1, key: 2}]})


def test_keys_that_would_become_one_are_refused() -> None:
    with pytest.raises(CodecError, match="must have str keys only"):
        payload.encode({1: "a", "1": "b"})
    with pytest.raises(CodecError, match="must not have a key twice"):
        payload.encode({OneOfMany("a"): 1, "a": 2})


def test_a_key_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(
        CodecError, match=r"payload at \$\.a must not have a lone surrogate in a key, got '\\ud800'"
    ):
        payload.encode({"a": {"\ud800": 1}})


def test_a_value_that_contains_itself_is_refused() -> None:
    rows: list[object] = [1]
    rows.append({"again": rows})
    mapping: dict[str, object] = {}
    mapping["a"] = (mapping,)

    with pytest.raises(CodecError, match=r"payload at \$\[1\]\.again must not contain itself"):
        payload.encode(rows)
    with pytest.raises(CodecError, match=r"payload at \$\.a\[0\] must not contain itself"):
        payload.encode(mapping)


def test_the_path_to_a_deep_value_is_cut_in_the_middle() -> None:
    with pytest.raises(CodecError) as caught:
        payload.encode({"first": nested(200, {"last": math.nan})})

    assert re.fullmatch(
        r"payload at \$\.first(\[0\])+.*….*\]\.last must be finite, got nan", str(caught.value)
    )
    assert len(str(caught.value)) < 300


@given(st.text() | SURROGATE)
def test_a_text_is_encodable_if_utf_8_holds_it(text: str) -> None:
    assert is_encodable(text) == (text.encode("utf-8", "replace") == text.encode("utf-8", "surrogatepass"))
