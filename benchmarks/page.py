"""The figures of docs/performance.md: printed from the committed reports, between marks, and nowhere else.

python benchmarks/page.py [--check]
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from figure import Report, load
from report import TABLES, bar_table, facts

__all__ = ["CHARTS", "PAGE", "REPORTS", "rendered", "reports"]

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "performance.md"
CHARTS: Final = ROOT / "docs" / "performance"
REPORTS: Final = ROOT / "benchmarks" / "reports"
MARK: Final = re.compile(r"(<!-- bench: (?P<engine>\w+) (?P<what>\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def reports(folder: Path = REPORTS) -> dict[str, Report]:
    """Give the committed reports by engine: those alone that are for publishing."""
    found = (load(path) for path in sorted(folder.glob("bench_*.json")))
    return {report.engine: report for report in found if report.publishable}


def rendered(page: str, known: dict[str, Report]) -> str:
    """Give the page with its figures as the reports have them."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{_block(match['engine'], match['what'], known)}\n{match[4]}"

    return MARK.sub(fill, page)


def _block(engine: str, what: str, known: dict[str, Report]) -> str:
    report = known.get(engine)
    if report is None:
        return f"No report is committed yet: `nox -s bench -- --engine {engine}` makes it.\n"
    if what == "facts":
        return "\n".join(facts(report)) + "\n"
    if what == "bars":
        return "\n".join(bar_table(report)) + "\n"
    if not report.of(what):
        return "Not measured.\n"
    if what == "footprint":
        return "\n".join(TABLES[what](report)) + "\n"
    return (
        "\n".join([f"![{what} on {engine}](performance/{engine}-{what}.svg)", "", *TABLES[what](report)])
        + "\n"
    )


def main(arguments: Sequence[str] = ()) -> int:
    """Write the page, or say whether it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say whether it is stale, and write nothing")
    parser.add_argument("--page", type=Path, default=PAGE, help="another page")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="other reports")
    options = parser.parse_args(arguments)
    before = options.page.read_text(encoding="utf-8")
    after = rendered(before, reports(options.reports))
    if not options.check:
        options.page.write_text(after, encoding="utf-8")
    elif before != after:
        print(f"{options.page} is not what the reports say: python benchmarks/page.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
