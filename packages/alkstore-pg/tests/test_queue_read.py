"""What is read of jobs: pages, counts, names."""

from collections.abc import AsyncIterator, Iterator

import pytest
from queues import ALL, Jobs, jobs, new_job, token_of

from alkstore.engine import Ack, JobCounts, JobFilter, JobState, Retry
from alkstore_pg import queue
from alkstore_pg.contract_server import Server


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    yield server.create_database("test_queue_read")
    server.drop_database("test_queue_read")


@pytest.fixture
async def q(database: str) -> AsyncIterator[Jobs]:
    async with jobs(database) as world:
        yield world


@pytest.fixture
async def mixed(q: Jobs) -> Jobs:
    """One job of each kind, with ids from 1: dead, lapsed, live, tried before, delayed, and one of another queue."""
    await q.killed()
    await q.held()
    await q.held(now=60)
    job = await q.held(now=70)
    await q.settle(Retry("q", job.id, token_of(job), 0, "Boom, again"), now=70)
    await q.enqueue(new_job(run_at=999))
    await q.enqueue(new_job(name="other"))
    return q


PENDING, PROCESSING = JobState.PENDING, JobState.PROCESSING


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        (JobFilter(), [1, 2, 3, 4, 5]),
        (JobFilter(state=PENDING), [4, 5]),
        (JobFilter(state=PROCESSING), [2, 3]),
        (JobFilter(state=JobState.DEAD), [1]),
        (JobFilter(after=2), [3, 4, 5]),
        (JobFilter(after=2, limit=2), [3, 4]),
        (JobFilter(after=-(2**63)), [1, 2, 3, 4, 5]),
        (JobFilter(after=ALL), []),
        (JobFilter(limit=ALL), [1, 2, 3, 4, 5]),
        (JobFilter(limit=0), []),
        (JobFilter(limit=-1), []),
        (JobFilter(state=PROCESSING, after=2), [3]),
        (JobFilter(state=PROCESSING, limit=1), [2]),
        (JobFilter(state=PENDING, after=4), [5]),
        (JobFilter(state=JobState.DEAD, after=1), []),
        (JobFilter(error="oom"), [1, 4]),
        (JobFilter(error="boom"), [1]),
        (JobFilter(error="boom", state=PENDING), []),
        (JobFilter(error="again", state=PENDING), [4]),
        (JobFilter(error="%"), []),
        (JobFilter(ids=()), []),
        (JobFilter(ids=(5, 1, 5, 6, 99)), [1, 5]),
        (JobFilter(ids=(2**63, 3, -(2**63) - 1)), [3]),
        (JobFilter(ids=(5, 4, 3, 2), limit=2), [2, 3]),
        (JobFilter(ids=(1, 2, 3, 4), state=PROCESSING), [2, 3]),
        (JobFilter(ids=(1, 2, 3, 4), error="oom"), [1, 4]),
        (JobFilter(ids=(1, 4), error="oom", state=JobState.DEAD, limit=1), [1]),
        (JobFilter(ids=(1, 4), limit=0), []),
        (JobFilter(ids=(1, 4), after=3), [1, 4]),
    ],
)
async def test_jobs_are_found_in_the_order_of_their_ids(
    mixed: Jobs, where: JobFilter, ids: list[int]
) -> None:
    assert [job.id for job in await mixed.find(where)] == ids


@pytest.mark.parametrize("state", [None, *JobState])
async def test_a_job_reads_the_same_however_it_is_found(mixed: Jobs, state: JobState | None) -> None:
    found = await mixed.find(JobFilter(state=state), "q")

    assert found == [await mixed.job_of(job.id) for job in found]
    assert state is None or {job.state for job in found} == {state}


async def test_jobs_are_counted_by_what_a_claim_would_make_of_them(mixed: Jobs) -> None:
    await mixed.held(new_job(attempts=1, priority=9))
    await mixed.enqueue(new_job(expires=1))

    assert await mixed.count("q", now=100) == JobCounts(2, 1, 1, 2, 1, 100)
    assert await mixed.count("none", now=100) == JobCounts(0, 0, 0, 0, 0, None)


async def test_the_age_of_the_oldest_ready_job_is_of_when_it_was_ready(q: Jobs) -> None:
    await q.enqueue(new_job(run_at=30), new_job(run_at=70), now=10)

    assert (await q.count("q", now=29)).oldest_ready_age is None
    assert (await q.count("q", now=50)).oldest_ready_age == 20


async def test_queues_are_named_by_code_point_as_long_as_they_have_rows(q: Jobs) -> None:
    names = ["B", "a", "b", "dead", "\u0101", "\uffee", "\U0001f600"]
    await q.killed(new_job(name="dead"))
    await q.enqueue(*[new_job(name=name) for name in (*names[::-1], "b") if name != "dead"])
    job = await q.held(new_job(name="acked"))
    await q.settle(Ack("acked", job.id, token_of(job)))

    assert await queue.names(q.on) == names
