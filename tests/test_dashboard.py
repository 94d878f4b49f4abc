"""The dashboard in a real browser: ``nox -s pages``. Left out and kept as tests/test_pages.py is."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from browsing import barriers, chromium, has_visible_focus, keep, press_until, sideways
from dashboard_server import Served, fill, served

from alkstore import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


SIZES = {"desk": {"width": 1280, "height": 860}, "phone": {"width": 360, "height": 740}}
TOKEN = "a secret of enough letters"
PAGES = {
    "queues": "/",
    "queue": "/queue?name=mail",
    "dead": "/queue?name=billing&state=dead",
    "job": "/job?name=billing&id=342",
    "table": "/queue?name=mail&as=table",
    "streams": "/streams",
    "stream": "/stream?name=orders",
    "event": "/event?name=orders&offset=1",
    "schedules": "/schedules",
    "locks": "/locks",
    "confirm": "/confirm?name=billing&action=purge",
    "problem": "/queue?name=%20",
}

Opened = Callable[..., AbstractContextManager["Page"]]


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site() -> Iterator[Served]:
    with served(token=None, write=True) as found:
        found.do(fill)
        yield found


@pytest.fixture
def opened(browser: "Browser", site: Served) -> Opened:
    """Opens a page; it fails if the page asks anybody else, has anything to complain of, or runs what it quotes."""

    @contextmanager
    def open_page(
        path: str = "/", size: str = "desk", scheme: str = "light", on: Served | None = None, **more: Any
    ) -> "Iterator[Page]":
        heard: list[str] = []
        address = (on or site).address
        context = browser.new_context(color_scheme=scheme, viewport=SIZES[size], **more)  # type: ignore[arg-type]
        context.set_default_timeout(5_000)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("dialog", lambda dialog: heard.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: heard.append(f"request: {request.url}"))
        page.goto(address + path)
        yield page
        context.close()
        assert [
            each for each in heard if not each.startswith(f"request: {address}/") and " 40" not in each
        ] == []

    return open_page


def wait_until_live(page: "Page") -> None:
    page.locator("#link[data-state=live]").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_no_page_has_a_barrier_or_scrolls_sideways(
    opened: Opened, site: Served, size: str, scheme: str
) -> None:
    found, wide = {}, {}
    with opened("/locks", size, scheme) as page:
        for name, path in PAGES.items():
            page.goto(site.address + path)
            if page.locator("#live").count():
                wait_until_live(page)
            keep(page, f"dashboard-{name}-{size}-{scheme}")
            found[name], wide[name] = barriers(page), sideways(page)

    assert {name: each for name, each in found.items() if each} == {}
    assert set(wide.values()) == {0}


def test_figures_change_by_themselves_and_what_has_the_focus_keeps_it(opened: Opened, site: Served) -> None:
    async def enqueue(store: Store) -> None:
        await store.queue("thumbnails").enqueue_batch(range(1_000))

    with opened() as page:
        wait_until_live(page)
        link = page.get_by_role("link", name="thumbnails")
        link.focus()
        page.evaluate("document.activeElement.here = true")
        before = page.locator("tr", has=link).inner_text()
        site.do(enqueue)
        page.locator("tr", has_text="1,056").wait_for()
        is_kept = page.evaluate("document.activeElement.here === true")
        loads = page.evaluate("performance.getEntriesByType('navigation').length")

    assert "56" in before
    assert (is_kept, loads) == (True, 1)


def test_dead_jobs_are_redriven_by_the_keyboard_alone(opened: Opened, site: Served) -> None:
    async def bury(store: Store) -> None:
        for reason in ("timeout", "refused"):
            await store.queue("keys").enqueue(1)
            handle = await store.queue("keys").claim_one()
            assert handle is not None
            await handle.fail(reason)

    site.do(bury)
    with opened() as page:
        press_until(page, "Tab", ".skip")
        is_seen = has_visible_focus(page)
        press_until(page, "Tab", "[href*='name=keys'][href*='state=dead']")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="keys").wait_for()
        press_until(page, "Tab", "input[type=checkbox]")
        page.keyboard.press("Space")
        press_until(page, "Tab", "button[name=action]")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Redrive 1 dead job?").wait_for()
        press_until(page, "Tab", "button.main")
        is_seen = is_seen and has_visible_focus(page)
        page.keyboard.press("Enter")
        page.get_by_role("status").filter(has_text="1 job made pending again.").wait_for()
        wait_until_live(page)
        figures = page.locator(".figures").inner_text()

    assert is_seen
    assert re.search(r"Ready\s+1\b", figures)
    assert re.search(r"Dead\s+1\b", figures)


def test_dead_jobs_are_purged_only_by_the_button_that_says_so(opened: Opened, site: Served) -> None:
    async def count(store: Store) -> int:
        return (await store.queue("billing").stats()).dead

    with opened("/queue?name=billing") as page:
        page.select_option("select[name=older_than]", "0")
        page.get_by_role("button", name="Purge").click()
        page.get_by_role("link", name="Leave them").click()
        page.get_by_role("heading", name="billing").wait_for()
        left = site.do(count)
        page.select_option("select[name=older_than]", "2592000")
        page.get_by_role("button", name="Purge").click()
        page.get_by_role("button", name="Delete the dead jobs").click()
        page.get_by_text("0 jobs deleted.").wait_for()

    assert (left, site.do(count)) == (6, 6)


def test_the_token_is_asked_for_and_one_can_leave(opened: Opened) -> None:
    with served(token=TOKEN) as locked, opened("/queue?name=mail", on=locked) as page:
        found = barriers(page)
        page.keyboard.type("not the token at all")
        page.keyboard.press("Enter")
        page.get_by_role("alert").wait_for()
        keep(page, "dashboard-login")
        found += barriers(page)
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="mail").wait_for()
        wait_until_live(page)
        script = page.evaluate("document.cookie")
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("heading", name="Log in").wait_for()
        page.goto(f"{locked.address}/")
        where = page.url

    assert found == []
    assert script == ""
    assert "/login?next=" in where


def test_a_page_tells_when_it_is_cut_off_and_goes_on_when_it_can(browser: "Browser") -> None:
    with served(token=None) as first:
        page = browser.new_page()
        page.goto(f"{first.address}/queue?name=mail")
        wait_until_live(page)
    page.locator("#link[data-state=lost]").wait_for()
    told = page.locator("#link").inner_text()
    with served(token=None, port=int(first.address.rsplit(":", 1)[1])) as second:
        second.do(fill)
        page.locator(".figures", has_text="240").wait_for()
        wait_until_live(page)
        page.close()

    assert told == "not connected"


def test_a_page_that_nobody_sees_looks_no_more(opened: Opened) -> None:
    with served(token=None) as alone, opened("/", on=alone) as page:
        wait_until_live(page)
        hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
        turn = "document.dispatchEvent(new Event('visibilitychange'))"
        page.evaluate(f"{hide % 'true'}; {turn}")
        page.locator("#link[data-state=paused]").wait_for()
        page.wait_for_function("() => performance.now() > 0")
        is_looking = _settled(page, alone)
        page.evaluate(f"{hide % 'false'}; {turn}")
        wait_until_live(page)

    assert not is_looking


def _settled(page: "Page", on: Served) -> bool:
    """Give whether it still looks, once the server has heard that nobody is there."""
    for _ in range(1_000):
        if not on.made._site.look.is_looking:
            return False
        page.wait_for_timeout(20)
    return True


def test_everything_can_be_read_and_done_without_scripts(opened: Opened) -> None:
    with opened("/queue?name=billing&state=dead", java_script_enabled=False) as page:
        assert page.locator(".chart svg").count() == 4
        assert page.locator("table.jobs tbody tr").count() == 6
        assert page.locator("#link").is_hidden()
        page.get_by_role("link", name="Queues").first.click()
        assert page.locator("table.queues tbody tr").count() >= 5


def test_who_points_at_a_chart_reads_its_values_and_who_cannot_has_a_table(opened: Opened) -> None:
    with opened("/queue?name=mail") as page:
        wait_until_live(page)
        slices = page.locator(".chart .slice").first
        slices.hover()
        told = slices.locator("title").text_content()
        seen = page.evaluate("getComputedStyle(document.querySelector('.slice:hover')).fillOpacity")
        page.get_by_role("link", name="table").click()
        row = page.get_by_role("region", name="Jobs over time").locator("tbody tr").first.inner_text()

    assert re.fullmatch(r"\d\d:\d\d:\d\dZ: ready 240, processing 0, delayed 37", told or "")
    assert float(seen) > 0
    assert row.split()[1:] == ["240", "0", "37"]


def test_one_finds_an_event_by_its_stream_and_its_offset(opened: Opened) -> None:
    with opened("/streams") as page:
        page.get_by_role("link", name="orders").click()
        page.get_by_role("heading", name="orders").wait_for()
        page.get_by_role("link", name="Older").click()
        page.get_by_label("Offsets after").fill("41")
        page.get_by_role("button", name="Show").click()
        page.get_by_role("link", name="42", exact=True).click()
        page.get_by_role("heading", name="Event 42").wait_for()
        payload = page.get_by_role("region", name="Payload").inner_text()

    assert payload == "41"
