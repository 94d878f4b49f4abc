import pytest

from alkstore.draft import new_jobs
from alkstore.engine import AlikeJobs, NewJob
from alkstore.stamps import PLAIN
from alkstore.values import EnqueueOpts


def job(payload: bytes) -> NewJob:
    return NewJob("mail", payload, b"{}", 2, None, None, 300, 3, 5, None)


ALIKE = AlikeJobs(job(b""), [b"1", b"2", b"3"])
JOBS = [job(b"1"), job(b"2"), job(b"3")]


def test_alike_jobs_are_the_sequence_of_the_jobs_that_they_stand_for() -> None:
    assert list(ALIKE) == JOBS
    assert len(ALIKE) == 3
    assert (ALIKE[0], ALIKE[-1]) == (JOBS[0], JOBS[-1])
    assert list(zip(*ALIKE, strict=True)) == list(zip(*JOBS, strict=True))
    assert all(type(each) is NewJob for each in (*ALIKE, ALIKE[1]))
    assert JOBS[1] in ALIKE


def test_a_slice_of_alike_jobs_is_alike_too() -> None:
    part = ALIKE[1:]

    assert isinstance(part, AlikeJobs)
    assert list(part) == JOBS[1:]
    assert not ALIKE[3:]


def test_there_is_no_job_past_the_end_of_alike_jobs() -> None:
    with pytest.raises(IndexError):
        ALIKE[3]


def test_a_batch_with_options_for_each_is_not_alike_and_one_without_is() -> None:
    call = EnqueueOpts(priority=2)
    values = [1, 2, 3]

    assert isinstance(new_jobs("mail", PLAIN, values, None, call), AlikeJobs)
    each = new_jobs("mail", PLAIN, values, [EnqueueOpts()] * 3, call)
    assert list(new_jobs("mail", PLAIN, values, None, call)) == list(each)
