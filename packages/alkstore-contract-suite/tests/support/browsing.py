"""A real browser, and what is asked of any page in it: no barrier, no way that needs a mouse."""

import importlib.resources
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["barriers", "chromium", "has_visible_focus", "keep", "press_until", "sideways"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextmanager
def chromium() -> "Iterator[Browser]":
    """Give the machine's Chromium; skips where there is none, or where the group ``pages`` is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="the dependency group 'pages' is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser is here: none of {', '.join(BROWSERS)}")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


def keep(page: "Page", name: str) -> None:
    """Keep a picture in the folder ``ALKSTORE_PAGES``, if that is set."""
    folder = os.environ.get("ALKSTORE_PAGES")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def barriers(page: "Page") -> list[tuple[str, str, str]]:
    """Give what axe finds: the rule, how serious it is, and the first place."""
    # By evaluate, which no content security policy of the page forbids.
    page.evaluate(
        importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    )
    found = page.evaluate("axe.run().then((told) => told.violations)")
    return [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found]


def sideways(page: "Page") -> int:
    """Give by how many pixels the page itself scrolls sideways."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def press_until(page: "Page", key: str, is_there: str) -> None:
    """Press a key until what has the focus is so; a page without a way there fails."""
    for _ in range(400):
        if page.evaluate(f"document.activeElement.matches({is_there!r})"):
            return
        page.keyboard.press(key)
    raise AssertionError(f"the keyboard does not come to {is_there}")


def has_visible_focus(page: "Page") -> bool:
    """Whether one sees what has the focus."""
    style = "getComputedStyle(document.activeElement)"
    return bool(page.evaluate(f"{style}.outlineStyle !== 'none' && parseFloat({style}.outlineWidth) >= 2"))
