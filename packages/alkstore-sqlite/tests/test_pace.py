import pytest

from alkstore_sqlite.pace import (
    ACTIVE,
    CHASE,
    IDLE_POLL,
    IDLE_REST,
    LONGEST_REST,
    POLL,
    REST,
    SAFETY,
    Pace,
    Wait,
)


def hinted() -> Pace:
    """A pace with hints that expects nothing."""
    pace = Pace()
    pace.has_hints = True
    for _ in CHASE:
        pace.note_still()
    return pace


def chased(pace: Pace, looks: int) -> list[float]:
    waits = []
    for _ in range(looks):
        waits.append(pace.next(0).seconds)
        pace.note_still()
    return waits


def test_nothing_is_looked_at_but_for_safety_while_no_hint_comes() -> None:
    assert hinted().next(0) == Wait(SAFETY, is_open=True, is_safety=True)


def test_a_hint_is_chased_until_every_distance_was_tried() -> None:
    pace = hinted()
    pace.note_hint()

    assert chased(pace, len(CHASE)) == list(CHASE)
    assert pace.next(0).is_safety
    assert sum(CHASE) > SAFETY


def test_hints_of_a_long_transaction_bring_no_more_than_a_look_in_a_millisecond() -> None:
    pace = hinted()
    pace.note_hint()
    chased(pace, 5)

    for _ in range(100):
        pace.note_hint()
        assert chased(pace, 1) == [0.001]


def test_the_first_hint_after_a_while_is_chased_from_the_start() -> None:
    pace = hinted()
    pace.note_hint()
    chased(pace, 14)

    pace.note_hint()

    assert chased(pace, 6) == list(CHASE[:6])


@pytest.mark.parametrize(
    ("concerns", "cost", "rest"),
    [
        (False, 0.000_01, IDLE_REST),
        (False, 0.001, 0.03),
        (True, 0.000_01, REST),
        (True, 0.001, 0.01),
        (False, 10.0, LONGEST_REST),
        (True, 10.0, LONGEST_REST),
    ],
)
def test_a_movement_is_followed_by_a_rest_that_no_hint_ends(concerns: bool, cost: float, rest: float) -> None:
    for pace in (hinted(), Pace()):
        pace.note_moved(0, cost, concerns=concerns)
        pace.note_hint()
        assert pace.next(0) == Wait(rest, is_open=False)


def test_a_second_commit_is_expected_after_a_movement() -> None:
    pace = hinted()
    pace.note_moved(0, 0, concerns=True)
    pace.next(0)

    assert not pace.next(0).is_safety


def test_a_file_that_was_busy_is_looked_at_again_soon() -> None:
    pace = hinted()
    pace.note_busy()

    assert pace.next(0) == Wait(IDLE_REST, is_open=False)
    assert not pace.next(0).is_safety


def test_without_hints_polls_are_close_only_while_something_moves() -> None:
    pace = Pace()
    assert pace.next(1).seconds == IDLE_POLL

    pace.note_moved(1, 0, concerns=True)
    pace.next(1)

    assert pace.next(1 + ACTIVE * 0.9) == Wait(POLL, is_open=False)
    assert pace.next(1 + ACTIVE).seconds == IDLE_POLL
