import enum
import linecache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alkstore.errors import InvalidArgument
from alkstore.payload import LAST_ERROR_BYTES, RETRY_ERROR_BYTES, error_text


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Reason(str, enum.Enum):  # noqa: UP042 - its str() is the member's name, a StrEnum's is not
    FULL = "disk full"


def raised(error: BaseException, depth: int = 0) -> BaseException:
    """Give the error with a traceback through so many calls."""
    try:
        if depth:
            raised_again(error, depth)
        raise error
    except BaseException as caught:
        return caught


def raised_again(error: BaseException, depth: int) -> None:
    if depth == 1:
        raise error
    raised_again(error, depth - 1)


def test_no_error_gives_the_default() -> None:
    assert error_text(None, "failed", LAST_ERROR_BYTES) == "failed"


@pytest.mark.parametrize(
    "text", ["", "boom", "two\nlines", "é🦆", "x" * LAST_ERROR_BYTES, "é" * (LAST_ERROR_BYTES // 2)]
)
def test_a_text_that_fits_is_kept(text: str) -> None:
    assert error_text(text, "failed", LAST_ERROR_BYTES) == text


def test_a_subclass_of_str_gives_its_text() -> None:
    text = error_text(Reason.FULL, "failed", LAST_ERROR_BYTES)

    assert (type(text), text) == (str, "disk full")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("abcdefgh", "abcdefgh"),
        ("abcdefghi", "abcdefgh"),
        ("abcdefgé", "abcdefg"),
        ("abcdef🦆", "abcdef"),
        ("abcd🦆", "abcd🦆"),
        ("abcdefg\0", "abcdefg"),
        ("🦆🦆🦆", "🦆🦆"),
    ],
)
def test_a_text_is_cut_at_the_edge_of_a_character(text: str, kept: str) -> None:
    assert error_text(text, "failed", 8) == kept


def test_nul_and_lone_surrogates_become_the_replacement_character() -> None:
    assert error_text("a\0b\ud800c\udfff", "failed", LAST_ERROR_BYTES) == "a\ufffdb\ufffdc\ufffd"


@given(st.text(st.characters()), st.integers(1, 40))
def test_every_text_becomes_storable_and_short_enough(text: str, limit: int) -> None:
    stored = error_text(text, "failed", limit)

    assert len(stored.encode()) <= limit
    assert "\0" not in stored
    assert text.startswith(stored) or "\ufffd" in stored


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("boom"), "builtins.ValueError: boom"),
        (ValueError(), "builtins.ValueError"),
        (KeyboardInterrupt(), "builtins.KeyboardInterrupt"),
        (ValueError("a\0\ud800"), "builtins.ValueError: a\ufffd\ufffd"),
        (
            InvalidArgument("limit must be an int"),
            f"{InvalidArgument.__module__}.InvalidArgument: limit must be an int",
        ),
        (Mute(), f"{__name__}.Mute"),
        (
            ExceptionGroup("two", [ValueError(1), ValueError(2)]),
            "builtins.ExceptionGroup: two (2 sub-exceptions)",
        ),
    ],
    ids=repr,
)
def test_an_exception_gives_its_type_and_message(error: BaseException, text: str) -> None:
    assert error_text(error, "failed", LAST_ERROR_BYTES) == text


def test_a_raised_exception_gives_its_traceback_too() -> None:
    text = error_text(raised(ValueError("boom"), 2), "failed", LAST_ERROR_BYTES)

    head, *frames = text.split("\n")
    assert head == "builtins.ValueError: boom"
    assert [line.rpartition(" in ")[2] for line in frames if ", line " in line] == [
        "raised",
        "raised_again",
        "raised_again",
    ]
    assert frames[-1].strip(" ^~") == "" or frames[-1].strip() == "raise error"


def test_a_long_traceback_keeps_its_end_in_whole_lines() -> None:
    error = raised(ValueError("boom"), 200)

    text = error_text(error, "failed", RETRY_ERROR_BYTES)

    head, first, *_, last = text.split("\n")
    assert RETRY_ERROR_BYTES // 2 < len(text.encode()) <= RETRY_ERROR_BYTES
    assert head == "builtins.ValueError: boom"
    assert first.startswith("  ")
    assert last.strip() == "raise error"


def test_a_traceback_that_fits_to_the_byte_is_kept_whole() -> None:
    error = raised(ValueError("boom"), 3)
    whole = error_text(error, "failed", LAST_ERROR_BYTES)

    assert error_text(error, "failed", len(whole.encode())) == whole


def test_a_traceback_that_is_a_byte_too_long_loses_its_first_line_and_no_other() -> None:
    error = raised(ValueError("boom"), 3)
    head, _, *rest = (whole := error_text(error, "failed", LAST_ERROR_BYTES)).split("\n")

    assert error_text(error, "failed", len(whole.encode()) - 1).split("\n") == [head, *rest]


def test_a_traceback_of_many_bytes_and_few_characters_is_cut_too() -> None:
    error = raised_in(f"raise ValueError('boom')  # {'🦆' * 300}\n")
    frames = error_text(error, "failed", LAST_ERROR_BYTES)

    text = error_text(error, "failed", RETRY_ERROR_BYTES)

    assert len(frames) < RETRY_ERROR_BYTES < len(frames.encode())
    assert len(text.encode()) <= RETRY_ERROR_BYTES


@pytest.mark.parametrize("size", [RETRY_ERROR_BYTES - 30, RETRY_ERROR_BYTES - 22, RETRY_ERROR_BYTES, 10**7])
def test_a_long_message_leaves_the_traceback_what_is_left(size: int) -> None:
    text = error_text(raised(ValueError("é" * size)), "failed", RETRY_ERROR_BYTES)

    assert text.startswith("builtins.ValueError: éé")
    assert RETRY_ERROR_BYTES - 1 <= len(text.encode()) <= RETRY_ERROR_BYTES


def raised_in(source: str) -> BaseException:
    """Give an error from code whose source reads so."""
    linecache.cache["<odd>"] = (len(source), None, [source], "<odd>")
    try:
        exec(compile("raise ValueError('boom')", "<odd>", "exec"))
    except ValueError as error:
        return error
    raise AssertionError


def test_a_traceback_is_made_storable_too() -> None:
    text = error_text(raised_in("raise ValueError('boom')  # a\0é\n"), "failed", LAST_ERROR_BYTES)

    assert text.startswith("builtins.ValueError: boom\n")
    assert "# a\ufffdé" in text


def test_a_traceback_that_cannot_be_shown_leaves_the_message() -> None:
    # A lone surrogate in a source makes the standard library's own formatting fail.
    text = error_text(raised_in("raise ValueError('boom')  # \ud800\n"), "failed", LAST_ERROR_BYTES)

    assert text.startswith("builtins.ValueError: boom")
    assert text.encode()


@pytest.mark.parametrize(
    "error", [5, b"boom", ValueError, ["boom"], object()], ids=lambda error: type(error).__name__
)
def test_anything_else_is_an_invalid_argument(error: object) -> None:
    with pytest.raises(InvalidArgument, match="error must be a str, an exception or None"):
        error_text(error, "failed", LAST_ERROR_BYTES)  # type: ignore[arg-type]
