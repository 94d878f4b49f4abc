"""The demo's proof: what became of each job, counted at the end from what the storage holds.

An event of the facts' stream is committed with the ack of its job and names it. So the events say which jobs are done,
and how often each took effect; the queue says which are dead. Whatever was enqueued must be one of both, once.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from alkstore.demo_work import ATTEMPT, JOB, Areas
from alkstore.engine import JobState
from alkstore.values import Job

__all__ = ["Effect", "Proof", "judge", "prove"]

PAGE: Final = 500
SHOWN: Final = 5
"""Ids that a problem names at most."""


@dataclass(frozen=True, slots=True)
class Effect:
    """That a job was acked: which one, and at which of its claims."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of the jobs of a run.

    Attributes:
        enqueued: How many there were.
        acked: How many took effect.
        dead: How many are dead.
        claimed_again: How many of those acked had been claimed before, by a worker that did not end them.
        lost: Ids of jobs that are neither acked nor dead.
        doubled: Ids of jobs that took effect twice, or are acked and dead.
        unknown: Ids that took effect or are dead, and were never enqueued.
    """

    enqueued: int
    acked: int
    dead: int
    claimed_again: int
    lost: Sequence[int]
    doubled: Sequence[int]
    unknown: Sequence[int]

    def problems(self) -> list[str]:
        """Give the promises that do not hold, each with the jobs that broke it."""
        jobs = f"{self.enqueued:,} jobs"
        found = (
            ("every enqueued job is acked or dead", self.lost, f"of {jobs}"),
            ("no job is acked twice, or acked and dead", self.doubled, f"of {jobs}"),
            ("nothing is acked or dead but what was enqueued", self.unknown, f"more than {jobs}"),
        )
        return [
            f"{promise} (broken by {len(ids):,} {among}: {_shown(ids)})"
            for promise, ids, among in found
            if ids
        ]


def _shown(ids: Sequence[int]) -> str:
    more = ", …" if len(ids) > SHOWN else ""
    return f"id {', '.join(map(str, ids[:SHOWN]))}{more}"


def judge(enqueued: Iterable[int], effects: Iterable[Effect], dead: Iterable[int]) -> Proof:
    """Set what was enqueued against what became of it. Pure."""
    wanted, buried, landed = set(enqueued), set(dead), list(effects)
    attempts = {effect.job: effect.attempt for effect in landed}
    outcomes = Counter([*(effect.job for effect in landed), *buried])
    return Proof(
        enqueued=len(wanted),
        acked=len(attempts),
        dead=len(buried),
        claimed_again=sum(attempt > 1 for attempt in attempts.values()),
        lost=sorted(wanted - outcomes.keys()),
        doubled=sorted(job for job, times in outcomes.items() if times > 1),
        unknown=sorted(outcomes.keys() - wanted),
    )


async def prove(areas: Areas, enqueued: Sequence[int]) -> tuple[Proof, list[Job]]:
    """Read what became of the jobs of a run, once nothing works on them any more; gives the dead jobs too."""
    dead = await _read_dead(areas)
    effects = await _read_effects(areas)
    return judge(enqueued, effects, [job.id for job in dead]), dead


async def _read_effects(areas: Areas) -> list[Effect]:
    found: list[Effect] = []
    after = 0
    while page := await areas.facts.read_since(after, PAGE):
        found += [Effect(int(event.headers[JOB]), int(event.headers[ATTEMPT])) for event in page]
        after = page[-1].offset
    return found


async def _read_dead(areas: Areas) -> list[Job]:
    found: list[Job] = []
    after = 0
    while page := await areas.files.list(state=JobState.DEAD, after=after, limit=PAGE):
        found += page
        after = page[-1].id
    return found
