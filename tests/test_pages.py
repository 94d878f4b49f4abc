"""The page of a report in a real browser, opened from disk: ``nox -s pages``.

It is left out where there is no Chromium, or where the group ``pages`` is not installed. ``ALKSTORE_PAGES=folder`` keeps
pictures of what was looked at.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from browsing import barriers, chromium, has_visible_focus, keep, press_until, sideways
from made_reports import HOSTILE, a_failure

from alkstore_contract_suite import report, rows
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Selection, plan, settled
from alkstore_contract_suite.registry import Registry
from alkstore_contract_suite.report_values import CellValue, EngineValue, Report
from alkstore_contract_suite.verdict import Verdict, judge
from alkstore_mem.contract import register

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


SIZES = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 375, "height": 740}}
SHOWN = ("WAKE-0", "Q-0", "LOCK", "OBX", "FACTORY")
"""Rows enough to look at: the search for barriers takes longer with every element."""
STATUSES = [Status.FAIL, Status.BLOCKED, Status.INCONCLUSIVE, Status.XFAIL, Status.XPASS]

Opened = Callable[..., AbstractContextManager["Page"]]


def of_mem() -> EngineValue:
    """Give mem's column as it is when everything passes."""
    registry = Registry()
    register(registry)
    (column,) = registry.columns.values()
    known = rows.registered()
    cases = plan(known, column)
    outcomes = {
        case: settled(case, column, Selection()) or Outcome(status=Status.PASS, seconds=0.004)
        for case in cases
    }
    run = report.Run([judge(column, cases, outcomes, {})], known, Selection(), 7, 1.5)
    (engine,) = report.as_report(run).engines
    few = tuple(cell for cell in engine.cells if cell.row.startswith(SHOWN))
    return msgspec.structs.replace(engine, cells=few)


def flawed(engine: EngineValue, name: str, **fields: Any) -> EngineValue:
    """Give a column in which every seventh cell is red, in every way, and with the worst that a driver may say."""
    cells: list[CellValue] = []
    for place, cell in enumerate(engine.cells):
        if place % 7:
            cells.append(cell)
            continue
        red = a_failure(cell.row, HOSTILE if place % 2 else "no id twice", cell.mode)
        cells.append(msgspec.structs.replace(red, status=STATUSES[place % len(STATUSES)]))
    counts = dict(Counter(cell.status.value for cell in cells))
    changes = {"cells": tuple(cells), "counts": counts, "verdict": Verdict.NOT_CONFORMANT, **fields}
    return msgspec.structs.replace(engine, name=name, **changes)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mem = of_mem()
    engines = (
        mem,
        flawed(mem, HOSTILE),
        flawed(mem, "pg", storage="PostgreSQL 15"),
        msgspec.structs.replace(mem, name="pg", storage="PostgreSQL 18"),
    )
    known = report.as_report(report.Run([], rows.registered(), Selection(), 7, 0.0)).rows
    known = tuple(row for row in known if row.id.startswith(SHOWN))
    folder = tmp_path_factory.mktemp("page")
    report.write(Report(schema=1, contract="1.0", suite="0.1.0", rows=known, engines=engines), folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with chromium() as found:
        yield found


@pytest.fixture
def opened(browser: "Browser", file: Path) -> Opened:
    """Opens the page; it fails if the page asks for anything, has anything to complain of, or runs what it quotes."""

    @contextmanager
    def open_page(
        size: str = "desk", scheme: str = "light", fragment: str = "", **more: Any
    ) -> "Iterator[Page]":
        heard: list[str] = []
        context = browser.new_context(color_scheme=scheme, viewport=SIZES[size], **more)  # type: ignore[arg-type]
        context.set_default_timeout(5_000)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("dialog", lambda dialog: heard.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: heard.append(f"request: {request.url}"))
        page.goto(f"{file.as_uri()}{fragment}")
        yield page
        context.close()
        assert [each for each in heard if each.split("#")[0] != f"request: {file.as_uri()}"] == []

    return open_page


def count(page: "Page") -> str:
    return page.locator("#count").inner_text()


def total(page: "Page") -> int:
    return page.locator("tr.row").count()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_has_no_barrier_closed_or_open(opened: Opened, size: str, scheme: str) -> None:
    with opened(size, scheme) as page:
        keep(page, f"{size}-{scheme}")
        found = barriers(page)
        button = page.locator("#matrix td button").first
        button.click()
        keep(page, f"{size}-{scheme}-open")
        found += barriers(page)
        width = sideways(page)

    assert found == []
    assert width == 0, "the page itself scrolls sideways"


def test_the_filter_works_by_the_keyboard_alone_and_tells_its_count(opened: Opened) -> None:
    with opened() as page:
        whole = f"{total(page)} of {total(page)} rows"
        press_until(page, "Tab", "input[name=text]")
        is_seen = has_visible_focus(page)
        page.keyboard.type("lock-0 held")
        by_text = count(page)
        page.keyboard.press("Tab")
        page.keyboard.type("needs")
        by_status = count(page)
        press_until(page, "Tab", "button[type=reset]")
        page.keyboard.press("Enter")
        page.locator("#count", has_text=whole).wait_for()
        shown = page.locator("tr.row:visible").count()
        is_live = page.locator("#count").get_attribute("role")
        press_until(page, "Shift+Tab", "select[name=status]")
        page.keyboard.press("Tab")
        page.keyboard.type("OBX")
        areas = {line.get_attribute("data-area") for line in page.locator("tr.row:visible").all()}
        heads = page.locator("tr.area:visible").count()

    numbers = [int(text.split(" ")[0]) for text in (by_text, by_status)]
    assert is_seen
    assert 0 < numbers[1] < numbers[0] < shown
    assert is_live == "status"
    assert (areas, heads) == ({"OBX"}, 1)


def test_a_row_opens_and_closes_by_the_keyboard(opened: Opened) -> None:
    with opened() as page:
        press_until(page, "Tab", "tr.row th button")
        is_seen = has_visible_focus(page)
        button = page.locator("tr.row th button").first
        detail = page.locator("tr.detail").first
        seen = [detail.is_visible()]
        for _ in range(2):
            page.keyboard.press("Enter")
            seen.append(detail.is_visible())
            assert button.get_attribute("aria-expanded") == str(detail.is_visible()).lower()

    assert is_seen
    assert seen == [False, True, False]


def test_a_failed_cell_opens_to_its_reason_and_the_command_that_repeats_it(opened: Opened) -> None:
    with opened() as page:
        button = page.locator("tr.row td button", has_text="FAIL").first
        button.focus()
        page.keyboard.press("Enter")
        section = page.locator(f"[id='{button.get_attribute('aria-controls')}']")
        text, is_marked = section.inner_text(), section.evaluate("each => each.classList.contains('current')")

    assert "41 twice" in text
    assert "pytest --pyargs alkstore_contract_suite --alk-engine" in text
    assert is_marked


def test_a_link_to_a_row_opens_it(opened: Opened) -> None:
    with opened(fragment="#Q-07") as page:
        line = page.locator("tr.row[id='Q-07']")
        page.locator("tr.row[id='Q-07'] + tr.detail:visible").wait_for()
        is_open = line.locator("th button").get_attribute("aria-expanded")
        others = page.locator("tr.detail:visible").count()

    assert (is_open, others) == ("true", 1)


def test_what_a_filter_hides_stays_hidden_when_all_is_opened(opened: Opened) -> None:
    with opened() as page:
        page.select_option("select[name=area]", "LOCK")
        page.click("#open")
        shown = page.locator("tr.row:visible").count()
        opened_now = page.locator("tr.detail:visible").count()
        page.click("#close")
        closed = page.locator("tr.detail:visible").count()

    assert opened_now == shown > 0
    assert closed == 0


def test_everything_can_be_read_without_scripts(opened: Opened) -> None:
    with opened(java_script_enabled=False) as page:
        details = page.locator("tr.detail:visible").count()
        is_filter_shown = page.locator("#filter").is_visible()

        assert details == total(page) > 0
        assert not is_filter_shown
