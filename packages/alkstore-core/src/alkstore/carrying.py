"""Headers that observers send along, put beside the caller's own."""

from collections.abc import Mapping, Sequence

from alkstore import payload
from alkstore.engine import AlikeEvents, AlikeJobs, NewEvent, NewJob
from alkstore.errors import AlkstoreError

__all__ = ["events", "jobs", "joined"]


def jobs(jobs: Sequence[NewJob], extra: Mapping[str, str]) -> Sequence[NewJob]:
    """Give jobs with further headers."""
    if isinstance(jobs, AlikeJobs):
        pattern = jobs.pattern
        return AlikeJobs(pattern._replace(headers=joined(pattern.headers, extra)), jobs.payloads)
    known: dict[bytes, bytes] = {}
    return [job._replace(headers=_once(known, job.headers, extra)) for job in jobs]


def events(events: Sequence[NewEvent], extra: Mapping[str, str]) -> Sequence[NewEvent]:
    """Give events with further headers."""
    if isinstance(events, AlikeEvents):
        shared = events.pattern
        return AlikeEvents(shared._replace(headers=joined(shared.headers, extra)), events.payloads)
    known: dict[bytes, bytes] = {}
    return [event._replace(headers=_once(known, event.headers, extra)) for event in events]


def _once(known: dict[bytes, bytes], headers: bytes, extra: Mapping[str, str]) -> bytes:
    # Mostly the same for a whole batch.
    found = known.get(headers)
    if found is None:
        found = known[headers] = joined(headers, extra)
    return found


def joined(headers: bytes, extra: Mapping[str, str]) -> bytes:
    """Add to encoded headers what fits, in order; all of them stay as they are where that is nothing.

    The caller's own stay: if one of them has a name of ours he carries a context himself, and two halves of two contexts
    make none. Never raises: nothing may fail to be sent for what goes along with it.
    """
    own = payload.decode_headers(headers)
    if not own.keys().isdisjoint(extra):
        return headers
    given = list(extra.items())
    while given:
        try:
            return payload.encode_headers({**own, **dict(given)})
        except AlkstoreError:  # they do not fit, or one is no legal header
            given.pop()
    return headers
