"""What stands before every page: who may ask, from where, and what a browser may do with the answer."""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from alkstore.dashboard.session import Sessions, new_session
from alkstore.errors import InvalidArgument, show

__all__ = ["VISIT", "Guard", "Hosts", "is_loopback", "set_cookie"]

VISIT: Final = "alkstore.session"
"""Where a request's scope has the id of its session."""

SAFE: Final = ("GET", "HEAD")

Refusal = tuple[int, str]


class Hosts:
    """The names under which a dashboard may be asked for.

    A page of somebody else's, whose name is made to point to us after it was loaded, is of our origin to the browser: what
    gives it away is that name, in the header Host. Addresses cannot be made to point elsewhere.
    """

    def __init__(self, names: Iterable[str], *, any_address: bool) -> None:
        """Take names beside ``localhost``; ``*`` allows all.

        Raises:
            InvalidArgument: They are no list of names, or one has a port.
        """
        if isinstance(names, str):
            raise InvalidArgument(f"hosts must be a list of names, got {show(names)}")
        self._names = {"localhost"}
        self._any_address = any_address
        for name in names:
            if not isinstance(name, str) or (name != "*" and _name_of(name) != name.lower().strip("[]")):
                raise InvalidArgument(f"a host is a name or an address without a port, got {show(name)}")
            self._names.add(name.lower().strip("[]"))

    def has(self, header: str) -> bool:
        """Whether a value of Host is allowed."""
        name = _name_of(header)
        if name is None:
            return False
        if name in self._names or "*" in self._names:
            return True
        return _is_address(name) and (self._any_address or is_loopback(name))


def _name_of(header: str) -> str | None:
    """Give the name in a Host header, without port and brackets; None if it is none."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.netloc != header or "@" in header:
        return None
    return parts.hostname.removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


class Guard:
    """Lets through to the pages what may pass, and puts its headers on every answer.

    Args:
        inner: The pages.
        sessions: Who is logged in.
        hosts: The names under which we may be asked for.
        policy: The content security policy.
        is_open: Paths that need no login.
    """

    def __init__(
        self, inner: ASGIApp, sessions: Sessions, hosts: Hosts, policy: str, is_open: Sequence[str]
    ) -> None:
        self._inner = inner
        self._sessions = sessions
        self._hosts = hosts
        self._open = tuple(is_open)
        self._headers = {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
            # Not no-referrer: a form would then be sent with the origin "null".
            "referrer-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "permissions-policy": "camera=(), geolocation=(), microphone=()",
            "cache-control": "no-store",
            "vary": "Accept, Cookie",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it. A server's lifespan is passed on; there are no web sockets."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        request = Request(scope)
        known = request.cookies.get(self._sessions.cookie, "")
        session = known or new_session()
        scope[VISIT] = session
        refusal = self._refusal(request, session)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
                if refusal is None and not known and not self._sessions.asks:
                    headers.append("set-cookie", set_cookie(self._sessions, session, request))
            await send(message)

        await (refusal or self._inner)(scope, receive, send_guarded)

    def _refusal(self, request: Request, session: str) -> Response | None:
        refused = self._refused(request.headers, request.method)
        if refused is not None:
            status, text = refused
            return PlainTextResponse(f"{text}\n", status)
        if self._sessions.is_known(session) or _path(request.scope) in self._open:
            return None
        if request.method not in SAFE or "text/event-stream" in request.headers.get("accept", ""):
            return PlainTextResponse("log in first\n", 401)
        wanted = request.scope.get("root_path", "") + _path(request.scope)
        query = urlencode({"next": f"{wanted}?{request.url.query}" if request.url.query else wanted})
        return RedirectResponse(f"{request.scope.get('root_path', '')}/login?{query}", 303)

    def _refused(self, headers: Headers, method: str) -> Refusal | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._hosts.has(hosts[0]):
            named = show(hosts[0]) if hosts else "none"
            return (
                421,
                f"this dashboard is not to be asked for as host {named}; hosts=… or --allow-host allows it",
            )
        if method in SAFE or _is_own_origin(headers, hosts[0]):
            return None
        return 403, "a form of another site, or of a browser that does not say whose: nothing was changed"


def _is_own_origin(headers: Headers, host: str) -> bool:
    origins = headers.getlist("origin")
    if not origins:
        return headers.getlist("sec-fetch-site") == ["same-origin"]
    if len(origins) != 1:
        return False
    # Not the scheme: behind a proxy that ends TLS we do not know it.
    scheme, separator, rest = origins[0].partition("://")
    return bool(separator) and scheme in ("http", "https") and rest.lower() == host.lower()


def _path(scope: Scope) -> str:
    """Give the path below where we are mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def set_cookie(sessions: Sessions, session: str, request: Request) -> str:
    """Give the header that has a browser keep a session, or with an empty one forget it."""
    parts = [f"{sessions.cookie}={session}", f"Path={request.scope.get('root_path') or '/'}", "HttpOnly"]
    parts += ["SameSite=Strict", *(["Secure"] if request.url.scheme == "https" else [])]
    parts += [] if session else ["Max-Age=0"]
    return "; ".join(parts)
