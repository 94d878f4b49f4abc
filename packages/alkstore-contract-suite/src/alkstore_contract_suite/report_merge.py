"""Several reports as one: the matrix of many engines, Pythons and versions of servers."""

import itertools
from collections.abc import Iterable, Sequence

from alkstore_contract_suite.report_reading import identity
from alkstore_contract_suite.report_values import SCHEMA_VERSION, Report, ReportError, RowValue

__all__ = ["merged"]


def merged(reports: Sequence[Report]) -> Report:
    """Put the engines of all reports side by side, sorted; each keeps what is known of its run.

    Raises:
        ReportError: They are of different contracts, or two of the runs cannot be told apart.
    """
    contracts = list(dict.fromkeys(report.contract for report in reports))
    if len(contracts) != 1:
        raise ReportError(
            f"reports of one contract can be merged, these are of {', '.join(contracts) or 'none'}"
        )
    engines = sorted((engine for report in reports for engine in report.engines), key=identity)
    for one, other in itertools.pairwise(engines):
        if identity(one) == identity(other):
            told = " ".join(part for part in identity(one) if part)
            raise ReportError(f"two of the runs cannot be told apart: {told}; merge one of them")
    return Report(
        schema=SCHEMA_VERSION,
        contract=contracts[0],
        suite=", ".join(sorted({report.suite for report in reports})),
        rows=_rows(row for report in reports for row in report.rows),
        engines=tuple(engines),
    )


def _rows(rows: Iterable[RowValue]) -> tuple[RowValue, ...]:
    found: dict[str, RowValue] = {}
    for row in rows:
        # Of two suites that test one contract, the one with more tests of a row says more of it.
        if row.id not in found or len(row.functions) > len(found[row.id].functions):
            found[row.id] = row
    return tuple(found.values())
