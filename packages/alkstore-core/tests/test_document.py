import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from alkstore.document import document, reader
from alkstore.engine import (
    Cancel,
    Claimed,
    EventRecord,
    JobFilter,
    JobRecord,
    JobState,
    NewSchedule,
    Retry,
    ScheduleRecord,
)

JOB = JobRecord(
    7, "mail", b'"\xc3\xa9"', b"{}", JobState.PENDING, -1, -(2**62), None, 0, 3, 300, 5, None, None, 0, None, None, "no",
    None, None,
)  # fmt: skip
RULE = NewSchedule("report", "@every 1h", 3_600_000_000, None, "mail", b"[]", 0, 300, 3, 5, None)


def words(number: int) -> str:
    return f"#{number}"


def numbers(word: str) -> int:
    return int(word[1:])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (JOB, JobRecord),
        (EventRecord(2**62, "log", None, b"null", b'{"a":"b"}', -5), EventRecord),
        (ScheduleRecord(RULE, 10), ScheduleRecord),
        (Claimed([JOB, JOB], None), Claimed),
        ([1, None, -3], list[int | None]),
        ([["a"], []], list[list[str]]),
    ],
)
def test_what_went_through_json_reads_back_equal(value: Any, kind: Any) -> None:
    assert reader(kind, numbers)(json.loads(json.dumps(document(value, words)))) == value


def test_a_record_goes_by_the_names_of_its_fields_and_says_its_kind() -> None:
    assert document((Retry("mail", 7, 8, 5, None), Cancel("mail", 7)), words) == [
        {"kind": "Retry", "queue": "mail", "id": "#7", "token": "#8", "delay": "#5", "error": False},
        {"kind": "Cancel", "queue": "mail", "id": "#7"},
    ]
    assert document(JobFilter(ids=(1, 2), state=JobState.DEAD), words) == {
        "kind": "JobFilter", "ids": ["#1", "#2"], "state": "dead", "error": False, "after": "#0", "limit": "#100",
    }  # fmt: skip


def test_truth_is_no_number_and_an_empty_text_is_not_absent() -> None:
    assert document([True, False, 1, ""], words) == [True, False, "#1", ""]
    assert reader(list[str | None], numbers)(["", False, None]) == ["", None, None]


def test_what_is_missing_is_none_or_the_default_and_what_is_beyond_is_passed_over() -> None:
    given = {
        "stream": "log",
        "offset": "#1",
        "payload": "1",
        "headers": "{}",
        "created_at": "#2",
        "kind": "NewEvent",
    }

    assert reader(EventRecord, numbers)(given) == EventRecord(1, "log", None, b"1", b"{}", 2)
    assert reader(Claimed, numbers)({"jobs": []}) == Claimed([], None)


def test_an_empty_mapping_is_an_empty_list_too() -> None:
    assert reader(Sequence[int], numbers)({}) == []
    assert reader(Mapping[str, int], numbers)({"a": "#1"}) == {"a": 1}
