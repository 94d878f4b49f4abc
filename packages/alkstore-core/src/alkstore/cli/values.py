"""Values of options: durations, instants, headers."""

import datetime as dt
import re
from typing import Any, Final

import click

__all__ = ["AGE", "HEADER", "INSTANT", "SECONDS"]

UNITS: Final = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_DURATION: Final = re.compile(r"(-?\d+(?:\.\d+)?)\s*([a-z]*)")


class _Seconds(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click alone
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        found = _DURATION.fullmatch(value.strip())
        if found is None or found[2] not in UNITS:
            self.fail(f"{value!r} is no duration: seconds, or a number with ms, s, m, h or d", param, ctx)
        return float(found[1]) * UNITS[found[2]]


class _Age(_Seconds):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = super().convert(value, param, ctx)
        if found < 0:
            self.fail(f"{value!r} is less than nothing", param, ctx)
        return found


class _Instant(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click alone
    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dt.datetime:
        try:
            instant = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no instant such as 2026-01-31T07:00:00Z", param, ctx)
        if instant.utcoffset() is None:
            self.fail(f"{value!r} says no time zone: append Z, or +01:00", param, ctx)
        return instant


class _Header(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click alone
    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value[0], value[1]
        name, separator, text = value.partition("=")
        if not separator or not name:
            self.fail(f"{value!r} is no header: NAME=VALUE", param, ctx)
        return name, text


SECONDS: Final = _Seconds()

AGE: Final = _Age()
"""A duration that is 0 or more: what is negative would mean more than anybody asked for."""

INSTANT: Final = _Instant()
HEADER: Final = _Header()
