"""The dashboard as an ASGI application."""

import re
import time
from collections.abc import Iterable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from alkstore.clock import Clock, chosen
from alkstore.dashboard.change import TooMuch, asked, change, done, fields
from alkstore.dashboard.guard import VISIT, Guard, Hosts, set_cookie
from alkstore.dashboard.live import Live
from alkstore.dashboard.look import INTERVAL, Look
from alkstore.dashboard.page import fragment, place, policy, render
from alkstore.dashboard.session import Sessions
from alkstore.dashboard.view import VIEWS, Site, View
from alkstore.dashboard.witness import Witness
from alkstore.errors import AlkstoreError, Closed, DatabaseError, InvalidArgument, show
from alkstore.store import Store

__all__ = ["Dashboard", "app"]

LOCAL: Final = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")
"""A path of this site: no ``//``, and no backslash, by which a browser would go elsewhere."""


class Dashboard:
    """An ASGI application that shows one store. Made by `app`."""

    def __init__(self, site: Site, sessions: Sessions, hosts: Hosts) -> None:
        self._site = site
        self._sessions = sessions
        self._guarded = Guard(self._pages(), sessions, hosts, policy(), ("/login",))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, as a server or an application that it is mounted in asks for it."""
        await self._guarded(scope, receive, send)

    def end(self) -> None:
        """End what is live, for a server that is about to stop: it waits for answers that go on. From a signal handler too."""
        self._site.look.ending.cancel()

    # ------------------------------------------------------------ routes

    def _pages(self) -> ASGIApp:
        routes = [Route(path, self._show(view), name=view.title) for path, view in VIEWS.items()]
        routes += [
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
        ]
        if self._site.write:
            routes += [
                Route("/confirm", self._ask, methods=["GET"]),
                Route("/change", self._change, methods=["POST"]),
            ]
        return Starlette(
            routes=routes,
            exception_handlers={
                HTTPException: self._missing,
                AlkstoreError: self._failed,
                TooMuch: _refuse_form,
            },
        )

    def _show(self, view: View) -> Any:
        site = self._site

        async def page(request: Request) -> Response | Live:
            query = request.query_params
            if view.live is not None and _goes_on(request):
                return self._live(view, request)
            if view.live is not None:
                await site.look.refresh()
            context = self._context(request, view.title)
            context |= {} if view.live is None else view.live(site, query)
            context |= {} if view.still is None else await view.still(site, query)
            return render(view.template, context, 404 if context.get("is_missing") else 200)

        return page

    def _live(self, view: View, request: Request) -> Live:
        session, query, site = request.scope[VISIT], request.query_params, self._site
        assert view.live is not None
        live = view.live
        live(site, query)  # what is no name is refused with a status

        def text() -> str:
            return fragment(view.template, self._context(request, view.title) | live(site, query))

        return Live(site.look, text, lambda: self._sessions.is_known(session))

    def _context(self, request: Request, title: str) -> dict[str, Any]:
        look = self._site.look
        return {
            "root": request.scope.get("root_path", ""),
            "page": title,
            "storage": self._site.store._label,
            "seen": look.seen,
            "now": look.now,
            "trouble": look.error,
            "write": self._site.write,
            "proof": self._sessions.proof(request.scope[VISIT]),
            "asks": self._sessions.asks,
        }

    # ------------------------------------------------------------ logging in and out

    async def _login(self, request: Request) -> Response:
        context = self._context(request, "Log in")
        wanted = request.query_params.get("next", "")
        if request.method != "POST":
            return render("login.html", context | {"is_wrong": False, "next": wanted})
        form = await fields(request)
        wanted = form.get("next", [""])[-1]
        session = self._sessions.login(form.get("token", [""])[-1])
        if session is None:
            return render("login.html", context | {"is_wrong": True, "next": wanted}, 403)
        root = context["root"]
        is_ours = LOCAL.fullmatch(wanted) is not None and wanted.startswith(f"{root}/")
        return self._sent(request, wanted if is_ours else f"{root}/", session)

    async def _logout(self, request: Request) -> Response:
        session = request.scope[VISIT]
        if not self._sessions.proves(session, (await fields(request)).get("proof", [""])[-1]):
            return _unproven()
        self._sessions.logout(session)
        return self._sent(request, f"{request.scope.get('root_path', '')}/login", "")

    def _sent(self, request: Request, where: str, session: str) -> Response:
        answer = RedirectResponse(where, 303)
        answer.headers.append("set-cookie", set_cookie(self._sessions, session, request))
        return answer

    # ------------------------------------------------------------ changes

    async def _ask(self, request: Request) -> Response:
        context = self._context(request, "Confirm")
        return render("confirm.html", context | await asked(self._site, request.query_params))

    async def _change(self, request: Request) -> Response:
        form = await fields(request)
        if not self._sessions.proves(request.scope[VISIT], form.get("proof", [""])[-1]):
            return _unproven()
        wanted = change(form)
        who = request.client.host if request.client else "somebody"
        result = await done(self._site, wanted, who)
        told = {"state": "dead", "done": "redriven" if wanted.action == "redrive" else "purged"}
        more = {"more": 1} if result.more else {}
        root = request.scope.get("root_path", "")
        return RedirectResponse(place(root, wanted.destination, **told, count=str(result.jobs), **more), 303)

    # ------------------------------------------------------------ errors

    async def _missing(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        if isinstance(error, HTTPException) and status == 405:
            return PlainTextResponse("not by this method\n", 405, error.headers)
        text = "There is no such page."
        if request.url.path.endswith(("/confirm", "/change")):
            text = "This dashboard only looks: it was started without --write, or made without write=True."
        return render("problem.html", self._context(request, "Not found") | {"text": text}, status)

    async def _failed(self, request: Request, error: Exception) -> Response:
        status = 503 if isinstance(error, (DatabaseError, Closed)) else 400
        title = "The storage does not answer" if status == 503 else "That cannot be shown"
        return render("problem.html", self._context(request, title) | {"text": str(error)}, status)


def _goes_on(request: Request) -> bool:
    """Whether it is asked for live: HEAD would wait for an answer of which it gets nothing."""
    return request.method == "GET" and "text/event-stream" in request.headers.get("accept", "")


async def _refuse_form(request: Request, error: Exception) -> Response:
    return PlainTextResponse("this is no form of the dashboard\n", 400)


def _unproven() -> Response:
    return PlainTextResponse("the form was not of your session: load its page again\n", 403)


def app(
    store: Store,
    *,
    token: str | None,
    write: bool = False,
    hosts: Iterable[str] = (),
    witness: Witness | None = None,
    interval: float = INTERVAL,
    clock: Clock | None = None,
) -> Dashboard:
    """Make the dashboard of a store: to be served by itself, or mounted in any ASGI application.

    The store must be open when it is served, and in the same event loop. It is only read, unless ``write`` is given.

    Args:
        token: What one must know to log in, 16 characters at least. None: whoever gets here may look; that is for a
            server on this machine, or for an application that lets nobody in who may not.
        write: Allows redriving and purging dead jobs.
        hosts: Names under which browsers ask for it, beside ``localhost``; with a token any address may be used as well,
            without one those of this machine. ``*`` is for an application that looks at the names itself.
        witness: An observer of the store, which then shows how much this process enqueues and does.
        interval: Seconds between two looks at least, however many look.
        clock: Of the store, if it was given one; the machine's by default.

    Raises:
        InvalidArgument: The token is short, a host is none, ``interval`` is not positive, or ``store`` is no store.

    Cost: nothing while nobody looks. A look is a round trip for the names, one for each queue, two for each stream, one for
    the locks, one for the schedules: of the first 200 queues and 200 streams, and never more than a tenth of the time. What
    was seen is kept in this process, 65 kB a queue.
    """
    if not isinstance(store, Store):
        raise InvalidArgument(f"app takes a store, got {show(store)}")
    if not isinstance(interval, (int, float)) or not interval > 0:
        raise InvalidArgument(f"interval must be a positive number of seconds, got {show(interval)}")
    sessions = Sessions(token, time.monotonic)
    look = Look(store, chosen(clock), witness, interval)
    return Dashboard(Site(store, look, witness, write), sessions, Hosts(hosts, any_address=token is not None))
