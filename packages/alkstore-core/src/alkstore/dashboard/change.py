"""What changes something: redrive and purge, each asked about on a page of its own and done by its form alone."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from starlette.datastructures import QueryParams
from starlette.requests import Request

from alkstore.clearing import redrive_dead
from alkstore.dashboard.view import Site, destination_of, jobs_of, number
from alkstore.engine import JobState
from alkstore.errors import InvalidArgument, show
from alkstore.observing import Destination

__all__ = ["Change", "Done", "TooMuch", "asked", "change", "done", "fields"]

LOGGER: Final = logging.getLogger("alkstore.dashboard")

LONGEST_FORM: Final = 65_536
"""Bytes of a form."""

MOST: Final = 20_000
"""Dead jobs that one form redrives, about: a browser waits for its answer."""

MOST_CHOSEN: Final = 200
"""Jobs that are chosen one by one: each is read, for the question."""

SAMPLE: Final = 5
"""Jobs that the question shows."""


class TooMuch(Exception):
    """A form is longer than any of ours, or is none."""


class Change(NamedTuple):
    """What is to be done: ``ids`` for some jobs, else all dead ones, by ``error`` or by age in seconds."""

    action: str
    destination: Destination
    ids: Sequence[int]
    error: str
    older_than: int


class Done(NamedTuple):
    """How many jobs were changed, and whether there may be more."""

    jobs: int
    more: bool


async def fields(request: Request) -> dict[str, list[str]]:
    """Read a form that a page of ours has sent; raises TooMuch for anything else."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise TooMuch
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            raise TooMuch
    try:
        return parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=1_000)
    except ValueError as error:
        raise TooMuch from error


def change(values: QueryParams | Mapping[str, list[str]]) -> Change:
    """Read what is to be done. Raises InvalidArgument."""
    many = values.getlist if isinstance(values, QueryParams) else lambda name: values.get(name, [])
    one = {name: many(name)[-1] for name in ("action", "kind", "name", "error", "older_than") if many(name)}
    action = one.get("action", "")
    if action not in ("redrive", "purge"):
        raise InvalidArgument(f"action must be redrive or purge, got {show(action)}")
    older_than = number(one.get("older_than", "0"), "older_than")
    if older_than < 0:
        raise InvalidArgument(f"older_than must be 0 or more seconds, got {older_than}")
    ids = [number(id, "id") for id in many("id")]
    if len(ids) > MOST_CHOSEN:
        raise InvalidArgument(f"at most {MOST_CHOSEN} jobs can be chosen at once, got {len(ids)}")
    if action == "purge" and (ids or one.get("error")):
        raise InvalidArgument("purge deletes dead jobs by their age; jobs and errors cannot be chosen")
    return Change(action, destination_of(one), ids, one.get("error", ""), older_than)


async def asked(site: Site, query: QueryParams) -> dict[str, Any]:
    """Give what the question says: what would be done to how many jobs, and which ones, for example."""
    wanted = change(query)
    queue = jobs_of(site.store, wanted.destination)
    if wanted.ids:
        found = [job for id in wanted.ids if (job := await queue.get_job(id)) and job.state is JobState.DEAD]
        count: int | None = len(found)
    else:
        found = await queue.list(state=JobState.DEAD, error=wanted.error or None, limit=SAMPLE)
        count = None if wanted.error or wanted.older_than else (await queue.stats()).dead
    return {"change": wanted, "count": count, "sample": found[:SAMPLE], "is_more": len(found) >= SAMPLE}


async def done(site: Site, wanted: Change, who: str) -> Done:
    """Do it, and log that."""
    queue = jobs_of(site.store, wanted.destination)
    if wanted.action == "purge":
        result = Done(await queue.purge_dead(older_than=wanted.older_than), more=False)
    elif wanted.ids:
        result = Done(await queue.redrive(*wanted.ids), more=False)
    else:
        count = await redrive_dead(queue, wanted.error or None, most=MOST)
        result = Done(count, more=count >= MOST)
    site.look.forget()
    LOGGER.info(
        "%s of %s %s from the dashboard by %s: %d jobs",
        wanted.action,
        wanted.destination.kind,
        show(wanted.destination.name),
        who,
        result.jobs,
    )
    return result
