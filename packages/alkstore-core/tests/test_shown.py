"""What people are shown of stored text."""

import pytest

from alkstore import shown
from alkstore.payload import error_text


def test_of_an_error_as_it_is_stored_the_line_that_says_what_happened_is_shown() -> None:
    try:
        raise ValueError("no such person")
    except ValueError as error:
        text = error_text(error, "", 1_024)

    assert "\n" in text
    assert shown.gist(text) == "builtins.ValueError: no such person"


@pytest.mark.parametrize(
    ("error", "gist"),
    [
        (None, None),
        ("", ""),
        ("refused", "refused"),
        ("exit status 1: no disk\nsee the log", "exit status 1: no disk"),
        ("Traceback (most recent call last):\n  File …\nValueError: no route\n", "ValueError: no route"),
    ],
)
def test_of_any_other_error_too(error: str | None, gist: str | None) -> None:
    assert shown.gist(error) == gist


def test_what_would_move_a_cursor_is_escaped_and_lines_stay_lines() -> None:
    assert shown.lines("a\x1b[2J\nb\u202e\r\nc") == "a\\x1b[2J\nb\\u202e\nc"
