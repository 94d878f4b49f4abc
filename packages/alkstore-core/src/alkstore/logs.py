"""Structured logging: the fields that alkstore's log records carry, and an observer that logs what happens.

Every field begins with ``alkstore_``, so that it takes no other one's place: ``extra`` may not overwrite what a record has.
"""

import logging
import re
from collections.abc import Mapping
from typing import Final

from alkstore.engine import JobRecord
from alkstore.errors import show
from alkstore.observing import (
    BatchWritten,
    Destination,
    EventsPublished,
    EventsRead,
    Fact,
    JobHandled,
    JobsClaimed,
    JobsEnqueued,
    JobSettled,
    JobsExpired,
    ListenerChanged,
    Outcome,
    SchedulesFired,
)
from alkstore.values import Job

__all__ = ["job_fields", "log", "queue_fields"]

LOGGER: Final = logging.getLogger("alkstore.facts")

LEVELS: Final[Mapping[Outcome, int]] = {
    "done": logging.DEBUG,
    "retried": logging.INFO,
    "released": logging.INFO,
    "dead": logging.WARNING,
    "lost": logging.WARNING,
}

Fields = dict[str, object]


def log(fact: Fact) -> None:
    """Log a fact; an observer: ``alkstore.open(url, observers=[alkstore.logs.log])``.

    The logger is ``alkstore.facts``. At DEBUG stands what is as it should be, at INFO what is tried again, given back or
    fired, at WARNING what somebody may have to look at: dead, lost, reclaimed and expired jobs, and a lost listener.
    """
    level = _level(fact)
    if LOGGER.isEnabledFor(level):
        name, fields = type(fact).__name__, _fields(fact)
        words = re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()
        told = ", ".join(f"{field} {value!r}" for field, value in fields.items())
        LOGGER.log(level, "%s: %s", words, told, extra=_named({"fact": name, **fields}))


def job_fields(record: JobRecord) -> Fields:
    """Give the ``extra`` of what is logged about one claim."""
    return _named(_of(Destination.of_queue(record.queue)) | _of_job(Job(record)))


def queue_fields(queue: str) -> Fields:
    """Give the ``extra`` of what is logged about a queue or an outbox."""
    return _named(_of(Destination.of_queue(queue)))


def _named(fields: Fields) -> Fields:
    return {f"alkstore_{name}": value for name, value in fields.items()}


def _of(destination: Destination) -> Fields:
    return {destination.kind: destination.name}


def _of_job(job: Job) -> Fields:
    return {"job_id": job.id, "attempt": job.attempts, "max_attempts": job.max_attempts}


def _level(fact: Fact) -> int:
    match fact:
        case JobSettled():
            return LEVELS[fact.outcome]
        case JobsExpired() | ListenerChanged(is_connected=False):
            return logging.WARNING
        case JobsClaimed() if fact.reclaimed and fact.reclaimed_exactly:
            return logging.WARNING
        case SchedulesFired() | ListenerChanged():
            return logging.INFO
    return logging.DEBUG


def _fields(fact: Fact) -> Fields:
    match fact:
        case JobsEnqueued():
            return {**_of(fact.destination), "count": len(fact.ids), "seconds": fact.seconds}
        case JobsClaimed():
            found = {**_of(fact.destination), "count": len(fact.jobs), "reclaimed": fact.reclaimed}
            return {**found, "seconds": fact.seconds}
        case JobHandled():
            error = None if fact.error is None else show(fact.error)
            found = {**_of(fact.destination), **_of_job(fact.job), "error": error}
            return {**found, "seconds": fact.seconds}
        case JobSettled():
            found = {**_of(fact.destination), **_of_job(fact.job), "outcome": fact.outcome}
            return {**found, "held": fact.held}
        case JobsExpired():
            return {**_of(fact.destination), "count": fact.count}
        case EventsPublished():
            return {**_of(fact.destination), "count": len(fact.offsets), "seconds": fact.seconds}
        case EventsRead():
            return {**_of(fact.destination), "count": len(fact.events), "seconds": fact.seconds}
        case SchedulesFired():
            return {"count": fact.jobs, "seconds": fact.seconds}
        case BatchWritten():
            return {"operation": fact.kind, "count": fact.size, "seconds": fact.seconds}
        case ListenerChanged():
            return {"connected": fact.is_connected, "reason": fact.reason}
    return {}
