"""Text as HTML, where everything is escaped that is not HTML already."""

import html
from collections.abc import Iterable
from typing import Final, TypeAlias

__all__ = ["Html", "element", "joined"]


class Html(str):
    """A text that is HTML, and is taken as it stands."""

    __slots__ = ()


Child: TypeAlias = str | None

EMPTY: Final = frozenset({"meta", "link", "input", "br"})
"""Elements without content and without an end."""

CONTROLS: Final = {code: "\ufffd" for code in (*range(0x20), 0x7F) if chr(code) not in "\t\n"}


def element(tag: str, *children: Child, **attributes: str | bool | None) -> Html:
    """Give an element; a child that is no `Html` is escaped, None is left out.

    Attributes too are escaped. ``True`` is an attribute without a value, None and False are none. A final underscore
    of a name is dropped (``class_``), others are dashes (``aria_expanded``).
    """
    shown = "".join(
        f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_escaped(value)}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    start = f"<{tag}{shown}>"
    return Html(start if tag in EMPTY else f"{start}{joined(children)}</{tag}>")


def joined(children: Iterable[Child], between: str = "") -> Html:
    """Give children one after the other, escaped where they are no HTML."""
    return Html(between.join(_escaped(child) for child in children if child is not None))


def _escaped(text: str) -> str:
    if isinstance(text, Html):
        return text
    # No page may hold a control character or half of a surrogate pair, whatever a driver's error holds.
    clean = text.translate(CONTROLS).encode("utf-8", "replace").decode("utf-8")
    return html.escape(clean)
