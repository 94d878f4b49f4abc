"""Pages from templates: what stands in them of stored text is escaped, cut, and of one line where it stands in a line."""

import base64
import datetime as dt
import functools
import hashlib
import importlib.resources
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from alkstore import shown
from alkstore.dashboard.chart import HEIGHT, WIDTH, short
from alkstore.observing import Destination
from alkstore.values import Job, Schedule, StreamEvent

__all__ = ["CUT", "asset", "fragment", "place", "policy", "pretty", "render", "rendered", "stream_place"]

CUT: Final = 20_000
"""Characters of a payload or an error that the page of one job shows."""

READ: Final = 65_536
"""Bytes of a payload that are laid out anew; a longer one is shown as it is stored, for that takes time."""


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("alkstore.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "plain": shown.plain,
        "lines": shown.lines,
        "n": _number,
        "short": short,
        "ago": _ago,
        "since": _since,
        "stretch": _stretch,
        "instant": shown.seconds,
        "clock": lambda at: f"{dt.datetime.fromtimestamp(at, dt.UTC):%H:%M:%S}Z",
        "paced": _paced,
        "payload": lambda carrier, most: shown.plain(shown.payload_text(carrier, 4 * most), most),
        "gist": shown.gist,
    }
    made.globals |= {
        "width": WIDTH,
        "height": HEIGHT,
        "style": Markup(asset("dashboard.css")),
        "script": Markup(asset("dashboard.js")),
        "query": _query,
        "place": place,
        "stream_place": stream_place,
    }
    return made


@functools.cache
def asset(name: str) -> str:
    """Give a style sheet or script, which stands in the page itself: nothing else is fetched."""
    return importlib.resources.files("alkstore.dashboard").joinpath("templates", name).read_text("utf-8")


def policy() -> str:
    """Give the content security policy: our style sheet and our script, by their digests, and nothing else."""
    return (
        f"default-src 'none'; script-src '{_hash('dashboard.js')}'; style-src '{_hash('dashboard.css')}'; "
        "connect-src 'self'; form-action 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
    )


def _hash(name: str) -> str:
    digest = hashlib.sha256(asset(name).encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def rendered(template: str, context: Mapping[str, Any]) -> str:
    """Give a page."""
    return _environment().get_template(template).render(context)


def render(template: str, context: Mapping[str, Any], status: int = 200) -> Response:
    """Answer with a page."""
    return HTMLResponse(rendered(template, context), status)


def fragment(template: str, context: Mapping[str, Any]) -> str:
    """Give what of a page changes by itself: its block ``live``."""
    found = _environment().get_template(template)
    return "".join(found.blocks["live"](found.new_context(dict(context))))


# ---------------------------------------------------------------- what templates say


def place(root: str, destination: Destination, **more: object) -> str:
    """Give the address of a queue's page."""
    return f"{root}/queue?{_query(kind=destination.kind, name=destination.name, **more)}"


def stream_place(root: str, stream: str, **more: object) -> str:
    """Give the address of a stream's page."""
    return f"{root}/stream?{_query(name=stream, **more)}"


def _query(**fields: object) -> str:
    return urlencode(
        {name: value for name, value in fields.items() if value not in (None, "")}, errors="replace"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _ago(seconds: float | None) -> str:
    return "–" if seconds is None else shown.ago(dt.timedelta(seconds=seconds)) or "–"


def _since(instant: dt.datetime, now: float) -> str:
    """Say how long ago an instant was, or in how long it will be."""
    span = now - instant.timestamp()
    if abs(span) < 1:
        return "now"
    told = shown.ago(dt.timedelta(seconds=int(abs(span))))
    told = f"{int(abs(span))} s" if abs(span) < 60 else told
    return f"{told} ago" if span > 0 else f"in {told}"


def _stretch(seconds: float) -> str:
    """Say a length of time in one unit."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _paced(rate: float | None, sign: bool = True) -> str:
    """Say how fast something changes, a second or a minute."""
    if rate is None:
        return "–"
    if rate == 0:
        return "0"
    unit, value = ("s", rate) if abs(rate) >= 1 else ("min", rate * 60)
    before = "−" if value < 0 else "+" if sign else ""
    return f"{before}{short(abs(value))}/{unit}"


def pretty(carrier: Job | StreamEvent | Schedule) -> tuple[str, bool]:
    """Give a payload laid out for reading, `CUT` characters at most, and whether that is all of it."""
    is_whole = len(carrier.payload_bytes) <= READ
    text = shown.pretty(carrier) if is_whole else shown.payload_text(carrier, READ)
    return text[:CUT], is_whole and len(text) <= CUT
