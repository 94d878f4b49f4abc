"""The page as a browser reads it: built of real headings and names, closed to everything that it quotes."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import msgspec
import pytest
from made_reports import HOSTILE, a_cell, a_failure, a_report, an_engine

from alkstore_contract_suite import report_html, report_markdown
from alkstore_contract_suite.html_text import element
from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.report_values import CaseValue, EngineValue, ExpectationValue

VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """A page as elements: tag, attributes, the text within, and the elements around."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str], tuple[str, ...]]] = []
        self._open: list[int] = []
        self.feed(html)
        self.close()
        assert self._open == [], "an element was not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        path = tuple(self.elements[place][0] for place in self._open)
        self.elements.append((tag, dict(attrs), [], path))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for place in self._open:
            self.elements[place][2].append(data)

    def texts(self, tag: str, **attributes: str) -> list[str]:
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [
            "".join(text).strip()
            for found, given, text, _ in self.elements
            if found == tag and wanted.items() <= given.items()
        ]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [given for found, given, _, _ in self.elements if found == tag]


def test_the_steps_of_a_machine_can_be_copied_for_a_replay() -> None:
    red = a_failure("Q-07")
    case = msgspec.structs.replace(red.cases["ids_are_distinct"], trace="enqueue <1>\nclaim")
    page = Page(
        report_html.render(a_report(an_engine("toy", msgspec.structs.replace(red, cases={"a": case}))))
    )

    assert page.texts("pre") == ["enqueue <1>\nclaim"]


LISTED = ExpectationValue(reason="known", issue="#7", expires="2027-01-31")

REPORT = a_report(
    an_engine(
        "toy",
        a_failure("Q-07", mode="concurrent"),
        a_cell("Q-07", Status.PASS, "plain"),
        a_cell("LOCK-01", Status.XFAIL, reason="late", expectation=LISTED),
        a_cell("FACTORY-01"),
    ),
    an_engine(
        "mem",
        a_cell("Q-07"),
        a_cell("Q-07", Status.NOT_APPLICABLE, "reopen", reason="durable: in memory"),
        a_cell("LOCK-01", Status.NOT_APPLICABLE, reason="durable: in memory"),
        a_cell("FACTORY-01"),
    ),
)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(report_html.render(REPORT))


def test_engines_head_columns_and_rows_head_lines(page: Page) -> None:
    heads = page.texts("th", scope="col")

    assert heads[heads.index("Row") :][:4] == ["Row", "Promise", "toy", "mem"]
    assert [text for text in page.texts("th", scope="row") if "-" in text] == [
        "Q-07",
        "LOCK-01",
        "FACTORY-01",
    ]
    assert page.texts("th", scope="rowgroup") == [
        "Q: queues",
        "LOCK: named locks",
        "FACTORY: what the author supplies",
    ]


def test_every_status_is_a_word_and_not_a_colour_alone(page: Page) -> None:
    shown = {
        "".join(text).strip()
        for _, given, text, _ in page.elements
        if (given.get("class") or "").startswith("status ")
    }

    assert shown == {"✗ FAIL", "✗ FAIL 1/2", "✓ PASS", "✗ XFAIL", "– N/A"}


def test_a_failed_cell_opens_its_reason_and_the_command_that_runs_it_again(page: Page) -> None:
    (button,) = [given for given in page.all("button") if given.get("aria-controls") == "r0e0"]
    (section,) = page.texts("section", id="r0e0")

    assert button["aria-expanded"] == "false"
    assert {"no id twice", "distinct ids", "41 twice"} <= set(page.texts("dd"))
    assert "open a" in page.texts("li")
    assert (
        "pytest --pyargs alkstore_contract_suite --alk-engine toy --alk-row Q-07 --alk-mode concurrent --alk-seed 7"
        in section
    )


def test_every_button_controls_something_and_every_id_is_there_once(page: Page) -> None:
    ids = [given["id"] for _, given, _, _ in page.elements if "id" in given]
    controlled = {given["aria-controls"] for given in page.all("button") if "aria-controls" in given}

    assert len(ids) == len(set(ids))
    assert controlled <= set(ids)
    assert controlled


def test_an_expected_failure_tells_its_issue_and_its_end(page: Page) -> None:
    assert "Listed until 2027-01-31: known (#7)" in page.texts("div", class_="reason")


def test_what_was_not_run_is_listed_with_its_reason(page: Page) -> None:
    assert page.texts("summary")[-1] == "mem"
    assert "durable: in memory" in page.texts("td")


def test_free_choices_stand_side_by_side() -> None:
    def choosing(name: str, *labels: str) -> EngineValue:
        cases = {
            str(place): CaseValue(status=Status.PASS, choices={"who wins": label})
            for place, label in enumerate(labels)
        }
        return an_engine(name, a_cell("Q-07", cases=cases))

    page = Page(report_html.render(a_report(choosing("one", "first"), choosing("two", "last", "none"))))

    lines = page.texts("tr")
    assert "Q-07who winsfirstlast, none" in lines


def test_the_modes_of_a_cell_begin_with_the_simplest() -> None:
    engine = an_engine("toy", *(a_cell("Q-07", mode=mode) for mode in ("process", "sideways", "plain")))
    page = Page(report_html.render(a_report(engine)))

    assert page.texts("b") == ["plain", "process", "sideways"]


def test_the_filter_has_names_and_its_count_is_a_live_region(page: Page) -> None:
    labels = [text.split("any")[0].split("all")[0] for text in page.texts("label")]

    assert labels == ["Text", "Status", "Area"]
    assert page.texts("p", role="status") == ["3 of 3 rows"]


def test_what_scrolls_is_reached_by_the_keyboard(page: Page) -> None:
    panes = [given for given in page.all("div") if given.get("class") == "pane"]

    assert panes
    assert all(given["tabindex"] == "0" and given["role"] == "region" for given in panes)


def test_nothing_is_fetched_and_only_our_script_runs(page: Page) -> None:
    (policy,) = [given["content"] for given in page.all("meta") if "http-equiv" in given]
    (script,) = page.texts("script")
    html = report_html.render(REPORT)
    (source,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()

    assert script
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}'; ")
    assert [link["href"] for link in page.all("link")] == ["data:,"]
    assert not [given for _, given, _, _ in page.elements if "src" in given]
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "https://" not in html


def test_what_engines_and_drivers_say_is_never_markup() -> None:
    cell = a_failure("Q-07", HOSTILE)
    engine = an_engine(HOSTILE, cell, a_cell(HOSTILE, Status.NOT_APPLICABLE, reason=HOSTILE), storage=HOSTILE)
    html = report_html.render(a_report(engine, an_engine("mem", a_cell("Q-07"))))
    page = Page(html)

    assert len(page.all("script")) == 1
    assert "alert(" not in "".join(page.texts("script"))
    assert "\x00" not in html
    assert "\x1b" not in html
    assert any("</script><script>alert('x')</script>\ufffd" in text for text in page.texts("dd"))


def test_what_engines_and_drivers_say_is_no_markup_of_markdown_either() -> None:
    text = report_markdown.render(a_report(an_engine(HOSTILE, a_failure("Q-07", HOSTILE))))

    assert "<" not in text
    assert "| FAIL | &lt;/script&gt;" in text
    assert "\\`code\\`" in text


def test_children_and_attributes_are_escaped_unless_they_are_elements() -> None:
    made = element("p", "<b>", element("i", "&"), None, title='"', hidden=True, lang=None, data_a_b="c")

    assert made == '<p title="&quot;" hidden data-a-b="c">&lt;b&gt;<i>&amp;</i></p>'


def test_half_of_a_surrogate_pair_can_be_written() -> None:
    assert element("p", "\ud800").encode("utf-8") == b"<p>?</p>"
