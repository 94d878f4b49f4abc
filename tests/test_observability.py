"""The dashboard and the alert rules name what the exporter exports, by its labels, and nothing of it is left out."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import alkstore
from alkstore.prometheus import Metrics

FOLDER = Path(__file__).parents[1] / "docs" / "observability"
DASHBOARD = FOLDER / "grafana-dashboard.json"
RULES = FOLDER / "alerts.yml"
PAGE = FOLDER.with_suffix(".md")

ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
"""What Prometheus' text format makes of a metric's name."""

PROMETHEUS_OWN = {"le", "instance"}
"""Labels that come from elsewhere: a histogram's bounds, the scrape's target."""


@pytest.fixture
async def exported() -> dict[str, str]:
    """The kind of each metric."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    async with alkstore.open("mem://") as store:
        with metrics.gauges(store):
            return {family.name: family.type for family in registry.collect()}


@pytest.fixture
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return found


def named(texts: Iterable[str]) -> set[str]:
    return {found for text in texts for found in re.findall(r"\balkstore_[a-z_]+\b", text)}


def series(exported: dict[str, str]) -> set[str]:
    return {name + ending for name, kind in exported.items() for ending in ENDINGS[kind]}


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def expressions() -> list[str]:
    """The expressions of the rules, each on one line."""
    lines = re.sub(r" #.*|^\s*#.*", "", RULES.read_text("utf-8"), flags=re.MULTILINE)
    return [
        " ".join(found[1].split())
        for found in re.finditer(r"expr: (?:>-)?(.*?)\n +(?:for|labels):", lines, re.DOTALL)
    ]


def test_every_metric_of_the_dashboard_is_exported(
    exported: dict[str, str], dashboard: dict[str, Any]
) -> None:
    assert named(queries(dashboard)) - series(exported) == set()


def test_every_metric_of_the_rules_is_exported(exported: dict[str, str]) -> None:
    assert len(expressions()) == RULES.read_text("utf-8").count("- alert:")
    assert named(expressions()) - series(exported) == set()


def test_every_exported_metric_is_on_the_dashboard_and_on_the_page(
    exported: dict[str, str], dashboard: dict[str, Any]
) -> None:
    shown, told = named(queries(dashboard)), named([PAGE.read_text("utf-8")])

    assert {name for name in exported if shown.isdisjoint(series({name: exported[name]}))} == set()
    assert set(exported) - {re.sub("_total$", "", name) for name in told} == set()


def test_labels_that_are_asked_for_are_those_of_the_metrics(dashboard: dict[str, Any]) -> None:
    asked = {
        label
        for text in (*queries(dashboard), *expressions())
        for group in re.findall(r"(?:by|on) \(([a-z, ]+)\)|\{([^}]*)\}", text)
        for label in re.findall(r"[a-z]+(?==)|(?<![\"\w$])[a-z]+(?=,|$)", ",".join(group))
    }

    assert asked - PROMETHEUS_OWN == {"kind", "queue", "outcome", "state", "stream", "consumer", "operation"}


def test_every_panel_and_every_rule_says_what_it_is_for(dashboard: dict[str, Any]) -> None:
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    rules = RULES.read_text("utf-8").split("- alert:")[1:]

    assert [panel["title"] for panel in panels if not panel["description"]] == []
    assert [rule.split()[0] for rule in rules if not re.search(r"^\s+# \w", rule, re.MULTILINE)] == []
    assert [rule.split()[0] for rule in rules if "severity:" not in rule or "description:" not in rule] == []


def test_panels_stand_side_by_side_and_not_on_one_another(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert cells.isdisjoint(taken), panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
