import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

from alkstore import errors
from alkstore.errors import AlkstoreError

CLASSES = [
    value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, AlkstoreError)
]

VALUE_ERRORS = {errors.InvalidName, errors.ReservedName, errors.InvalidSpec, errors.InvalidArgument}

EXAMPLES = {
    "schedule spec must be '@every <n><unit>' with unit s, m, h or d, got 'daily'": errors.InvalidSpec(
        "daily"
    ),
    "queue name must not be blank, got ' '": errors.InvalidName(" ", "queue name"),
    "queue name must not begin with '__alkstore_', which alkstore keeps for itself, got '__alkstore_x'": (
        errors.ReservedName("__alkstore_x", "queue name")
    ),
    "ttl must be positive, got 0": errors.InvalidArgument("ttl must be positive, got 0"),
    "notify payload must be at most 7000 bytes, got 7001; store the data and send its id": (
        errors.PayloadTooLarge(7001, 7000)
    ),
    "lock 'mail' was lost before its block ended; what the block did may have overlapped": errors.LockLost(
        "mail"
    ),
    "lock 'mail' was not free within 1.5 s": errors.LockTimeout("mail", 1.5),
    "consumer position must move forward, it is at 7; read from it in this transaction": (
        errors.OffsetConflict(None, 7)
    ),
    "consumer position expected at 3, found at 7; read again from there": errors.OffsetConflict(3, 7),
    "store is closed": errors.Closed(),
    "job handle was already acked; a handle settles once": errors.HandleConsumed(by="acked"),
    "enqueue would commit outside this task's open transaction begun at app.py:7; use Tx.enqueue": (
        errors.InsideTransaction("enqueue", "Tx.enqueue", "app.py:7")
    ),
    "lock would commit outside this task's open transaction; end the transaction first": (
        errors.InsideTransaction("lock", None)
    ),
    "storage has schema version 9, this engine knows up to 2; upgrade alkstore": errors.SchemaMismatch(9, 2),
    "no space left": errors.DatabaseError("no space left"),
    "payload at $.a must be JSON": errors.CodecError("payload at $.a must be JSON"),
    "the scheduler's lease lapsed": errors.LeadershipLost("the scheduler's lease lapsed"),
    "the claim of job 7 is lost": errors.ClaimLost("the claim of job 7 is lost"),
}


SHOWN = (
    errors.InvalidName, errors.ReservedName, errors.InvalidSpec, errors.LockLost,
    lambda text: errors.LockTimeout(text, 1.5),
)  # fmt: skip
"""What shows a caller's text itself; the other errors get theirs from `errors.show`."""


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


def test_every_public_error_is_an_alkstore_error() -> None:
    assert sorted(cls.__name__ for cls in CLASSES) == sorted({*errors.__all__, "AlkstoreError"})


@pytest.mark.parametrize("cls", CLASSES)
def test_four_errors_are_value_errors_and_a_lock_timeout_is_a_timeout(cls: type[AlkstoreError]) -> None:
    assert issubclass(cls, ValueError) == (cls in VALUE_ERRORS)
    assert issubclass(cls, TimeoutError) == (cls is errors.LockTimeout)


def test_a_reserved_name_is_no_invalid_name() -> None:
    assert not issubclass(errors.ReservedName, errors.InvalidName)


@pytest.mark.parametrize(
    ("text", "error"),
    EXAMPLES.items(),
    ids=[type(e).__name__ + str(i) for i, e in enumerate(EXAMPLES.values())],
)
def test_a_message_says_what_was_wrong_and_with_which_value(text: str, error: AlkstoreError) -> None:
    assert str(error) == text


@pytest.mark.parametrize(
    "error", EXAMPLES.values(), ids=[type(e).__name__ + str(i) for i, e in enumerate(EXAMPLES.values())]
)
def test_an_error_keeps_its_attributes_and_its_text_through_pickle_and_copy(error: AlkstoreError) -> None:
    error.add_note("seen in a worker")

    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert twin.args == error.args
        assert vars(twin) == vars(error)
        assert str(twin) == str(error)


def test_there_is_an_example_of_every_error() -> None:
    assert {type(each) for each in EXAMPLES.values()} == {*CLASSES} - {AlkstoreError}


def test_an_unknown_outcome_is_known_through_pickle_and_copy() -> None:
    error = errors.DatabaseError("the answer was lost")
    error.outcome_unknown = True

    assert pickle.loads(pickle.dumps(error)).outcome_unknown
    assert copy.copy(error).outcome_unknown


@pytest.mark.parametrize("make", SHOWN, ids=lambda make: make.__name__)
def test_every_error_escapes_and_cuts_the_text_that_it_shows(make: Callable[[str], AlkstoreError]) -> None:
    text = str(make("\ud800\n" + "x" * 10**6))

    assert text.encode()
    assert text.isprintable()
    assert len(text) < 250


@pytest.mark.parametrize("error", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_an_error_made_of_any_text_can_be_printed(error: AlkstoreError) -> None:
    broken = type(error)(*("a\ud800" if isinstance(part, str) else part for part in error.args))

    assert str(broken).encode()


@pytest.mark.parametrize(
    "name",
    ["\ud800", "a\0b", "x" * 10**6, "\n\r", "🦆" * 300],
    ids=["surrogate", "nul", "long", "lines", "wide"],
)
def test_a_message_can_be_printed_whatever_the_name(name: str) -> None:
    error = errors.InvalidName(name, "queue name")

    assert error.name == name
    assert str(error).encode()
    assert str(error).isprintable()
    assert len(str(error)) < 250


@pytest.mark.parametrize(
    "value",
    [Broken(), b"x" * 10**6, [1] * 10**5, 10**5000, "\ud800", None],
    ids=lambda value: type(value).__name__,
)
def test_any_value_can_be_shown(value: object) -> None:
    shown = errors.show(value)

    assert shown.encode()
    assert len(shown) <= errors.SHOWN_CHARACTERS + len("…")
