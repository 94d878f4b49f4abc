import enum
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alkstore import names
from alkstore.errors import InvalidArgument, InvalidName, ReservedName

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
LEGAL = TEXT.filter(lambda text: text.strip() and len(text.encode()) <= names.MAX_BYTES)

NEAR_MISSES = [
    "__alkstore",
    "_alkstore_",
    "__ALKSTORE_x",
    "__Alkstore_x",
    " __alkstore_x",
    "x__alkstore_",
    "__alkstore-x",
    "__alkstore\uff3f",
]
ODD = [
    "in side",
    "'quoted\"",
    "100%",
    "a;b",
    "back\\slash",
    "\x01\x1f",
    "🦆",
    "שלום",
    "é",
    "e\u0301",
    "\u200b",
]
Check = Callable[[object, str], str]
CHECKS: list[Check] = [names.shared, names.local]


class Colour(str, enum.Enum):  # noqa: UP042 - its str() is the member's name, a StrEnum's is not
    RED = "red"


class Loud(str):
    def __str__(self) -> str:
        return self.upper()


@given(LEGAL)
def test_a_legal_name_passes_unchanged(name: str) -> None:
    assert names.local(name, "consumer") == name
    if not name.startswith(names.PREFIX):
        assert names.shared(name, "queue name") == name


@pytest.mark.parametrize("name", [*NEAR_MISSES, *ODD, "x" * 255, "é" * 127 + "x"])
@pytest.mark.parametrize("check", CHECKS)
def test_odd_names_and_near_misses_of_the_prefix_pass(check: Check, name: str) -> None:
    assert check(name, "name") == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "must not be blank"),
        (" ", "must not be blank"),
        ("\t\n\u2003", "must not be blank"),
        ("a\0b", "must not contain NUL"),
        ("a\ud800", "must not contain a lone surrogate"),
        ("x" * 256, "must be at most 255 bytes of UTF-8, not 256"),
        ("é" * 128, "must be at most 255 bytes of UTF-8, not 256"),
        ("__alkstore_" + "x" * 256, "must be at most 255 bytes of UTF-8, not 267"),
        ("__alkstore_\0", "must not contain NUL"),
    ],
)
@pytest.mark.parametrize("check", CHECKS)
def test_an_illegal_name_is_refused_with_the_name(check: Check, name: str, problem: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check(name, "queue name")

    assert (caught.value.name, caught.value.what, caught.value.problem) == (name, "queue name", problem)


@pytest.mark.parametrize("name", [None, 5, b"mail", ["mail"], object])
@pytest.mark.parametrize("check", CHECKS)
def test_a_name_is_a_str(check: Check, name: object) -> None:
    with pytest.raises(InvalidArgument, match="queue name must be a str"):
        check(name, "queue name")


@pytest.mark.parametrize("name", ["__alkstore_", names.SCHEDULER_LOCK, names.OUTBOX_PREFIX + "mail"])
def test_the_prefix_is_reserved_for_shared_names_only(name: str) -> None:
    with pytest.raises(ReservedName) as caught:
        names.shared(name, "lock name")

    assert (caught.value.name, caught.value.what) == (name, "lock name")
    assert names.local(name, "consumer") == name


@pytest.mark.parametrize(("name", "plain"), [(Colour.RED, "red"), (Loud("quiet"), "quiet")])
@pytest.mark.parametrize("check", CHECKS)
def test_a_subclass_of_str_becomes_its_plain_text(check: Check, name: str, plain: str) -> None:
    given_back = check(name, "name")

    assert type(given_back) is str
    assert given_back == plain
