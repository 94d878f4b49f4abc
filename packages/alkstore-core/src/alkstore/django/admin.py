"""The dead jobs in the admin: list, look, redrive, purge; each by a permission of its own, changes after a question."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.request import QueryDict
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_POST

from alkstore.clearing import redrive_dead
from alkstore.django.models import DeadJob
from alkstore.django.process import store
from alkstore.errors import AlkstoreError
from alkstore.records import JobState
from alkstore.shown import gist, lines, many, plain, pretty
from alkstore.sync.queue import Queue
from alkstore.values import Job

__all__ = ["DeadJobAdmin"]

PAGE: Final = 50
"""Jobs on a page."""

SHOWN: Final = 120
"""Characters of an error in the list."""

MOST: Final = 20_000
"""Dead jobs that one form redrives, about: a browser waits for its answer."""

PLACES: Final = 200
"""Queues and outboxes that are counted for the list: each costs a round trip."""

LARGEST: Final = 2**63 - 1
"""Of what an id can be."""


@dataclass(frozen=True, slots=True)
class Place:
    """A queue, or the one behind an outbox."""

    name: str
    is_outbox: bool

    @classmethod
    def asked(cls, given: QueryDict) -> "Place":
        """Read which one is asked for."""
        return cls(given.get("queue", ""), given.get("kind") == "outbox")

    @property
    def title(self) -> str:
        """What people call it."""
        return f"{'outbox' if self.is_outbox else 'queue'} {plain(self.name)}"

    @property
    def query(self) -> dict[str, str]:
        """How it stands in an address."""
        return {"queue": self.name, "kind": "outbox" if self.is_outbox else "queue"}

    @property
    def address(self) -> str:
        """The same, as text."""
        return urlencode(self.query)

    def jobs(self) -> Queue:
        """Give the queue; 404 if there cannot be one of that name."""
        try:
            return store().outbox(self.name).jobs if self.is_outbox else store().queue(self.name)
        except AlkstoreError as error:
            raise Http404(str(error)) from error


@admin.register(DeadJob)
class DeadJobAdmin(admin.ModelAdmin):
    """Dead jobs of every queue and outbox of the store that the settings name."""

    actions: ClassVar[None] = None

    # ------------------------------------------------------------ who may do what

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody makes one."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Nobody edits one."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """They are purged by their age, and not one by one."""
        return False

    def get_urls(self) -> list[Any]:
        """Give the list, a job's page, and what changes something."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="alkstore_deadjob_changelist"),
            path("act/", view(require_POST(self.act_view)), name="alkstore_deadjob_act"),
            path("<int:id>/", view(self.job_view), name="alkstore_deadjob_change"),
        ]

    # ------------------------------------------------------------ looking

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """List the places that have dead jobs, and a page of one of them."""
        self._check_view(request)
        place, error = Place.asked(request.GET), request.GET.get("error", "")
        after = request.GET.get("after", "0")
        found: list[Job] = []
        if place.name:
            found = place.jobs().list(
                state=JobState.DEAD,
                error=error or None,
                after=_number(after) or 0,
                limit=PAGE + 1,
            )
        jobs = found[:PAGE]
        more = urlencode({**place.query, "error": error, "after": jobs[-1].id}) if len(found) > PAGE else ""
        return self._page(
            request,
            "change_list",
            "Dead jobs",
            **_places(),
            place=place,
            error=error,
            jobs=[(job, plain(gist(job.last_error) or "", SHOWN)) for job in jobs],
            more=more,
        )

    def job_view(self, request: HttpRequest, id: int) -> HttpResponse:
        """Show one job whole."""
        self._check_view(request)
        place = Place.asked(request.GET)
        job = place.jobs().get_job(id)
        if job is None or job.state is not JobState.DEAD:
            raise Http404(f"{place.title} has no dead job {id}")
        return self._page(
            request,
            "job",
            f"Dead job {id}",
            place=place,
            job=job,
            payload=lines(pretty(job)),
            error=lines(job.last_error or ""),
            headers={plain(name): plain(value) for name, value in job.headers.items()},
        )

    def _check_view(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    # ------------------------------------------------------------ changing

    def act_view(self, request: HttpRequest) -> HttpResponse:
        """Ask whether it is meant, and then do it."""
        action = request.POST.get("action", "")
        if action not in ("redrive", "purge"):
            raise Http404(f"there is no action {action!r}")
        if not request.user.has_perm(f"alkstore.{action}_deadjob"):
            raise PermissionDenied
        asked = _Asked.of(action, request.POST)
        if asked is None:
            messages.warning(request, "Nothing was chosen.")
            return self._back(Place.asked(request.POST))
        if "confirmed" not in request.POST:
            return self._page(request, "confirm", "Are you sure?", asked=asked, place=asked.place)
        count = asked.redrive() if action == "redrive" else asked.purge()
        self._log(request, asked, count)
        more = " More may be left: one form does about 20,000." if count >= MOST else ""
        messages.success(request, f"{asked.done}: {many(count, 'dead job')} of {asked.place.title}.{more}")
        return self._back(asked.place)

    def _back(self, place: Place) -> HttpResponse:
        address = reverse("admin:alkstore_deadjob_changelist", current_app=self.admin_site.name)
        return HttpResponseRedirect(f"{address}?{place.address}" if place.name else address)

    def _log(self, request: HttpRequest, asked: "_Asked", count: int) -> None:
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type=get_content_type_for_model(DeadJob),
            object_repr=asked.place.title[:200],
            action_flag=CHANGE if asked.action == "redrive" else DELETION,
            change_message=f"{asked.done}, {many(count, 'job')}: {asked.which}",
        )

    def _page(self, request: HttpRequest, template: str, title: str, **context: object) -> HttpResponse:
        user = request.user
        request.current_app = self.admin_site.name
        may = {action: user.has_perm(f"alkstore.{action}_deadjob") for action in ("redrive", "purge")}
        return TemplateResponse(
            request,
            f"admin/alkstore/deadjob/{template}.html",
            {
                **self.admin_site.each_context(request),
                "opts": DeadJob._meta,
                "title": title,
                "may": may,
                **context,
            },
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    """What somebody wants to do, and with which jobs."""

    action: str
    place: Place
    ids: tuple[int, ...] = ()
    error: str = ""
    days: float = 0

    @classmethod
    def of(cls, action: str, given: QueryDict) -> "_Asked | None":
        place = Place.asked(given)
        if action == "purge":
            days = _days(given.get("days", ""))
            return None if days is None else cls(action, place, days=days)
        if "everything" in given:
            return cls(action, place, error=given.get("error", ""))
        ids = tuple(id for text in given.getlist("id") if (id := _number(text)) is not None)
        return cls(action, place, ids=ids) if ids else None

    @property
    def which(self) -> str:
        if self.action == "purge":
            return f"those that died more than {self.days:g} days ago" if self.days else "all of them"
        if self.ids:
            shown = ", ".join(map(str, self.ids[:20])) + "…" * (len(self.ids) > 20)
            return f"{many(len(self.ids), 'chosen one')} ({shown})"
        return f"those whose error contains {self.error!r}" if self.error else "all of them"

    @property
    def done(self) -> str:
        return "Made pending again" if self.action == "redrive" else "Deleted"

    def redrive(self) -> int:
        jobs = self.place.jobs()
        if self.ids:
            return jobs.redrive(*self.ids)
        return jobs._call(lambda queue, _: redrive_dead(queue, self.error or None, most=MOST))

    def purge(self) -> int:
        return self.place.jobs().purge_dead(older_than=timedelta(days=self.days))


def _number(text: str) -> int | None:
    """Read an id; None if it can be none."""
    is_one = text.isdecimal() and len(text) < 20 and int(text) <= LARGEST
    return int(text) if is_one else None


def _days(text: str) -> float | None:
    """Read an age; None if it is none: less than nothing would mean all of them."""
    try:
        days = float(text)
        timedelta(days=days)
    except (ValueError, OverflowError):
        return None
    return days if days >= 0 else None


def _places() -> dict[str, Any]:
    opened = store()
    places = [Place(name, False) for name in opened.queues()] + [
        Place(name, True) for name in opened.outboxes()
    ]
    counted = [(place, place.jobs().stats().dead) for place in places[:PLACES]]
    found = [(place, dead) for place, dead in counted if dead]
    return {"places": found, "uncounted": max(len(places) - PLACES, 0)}
