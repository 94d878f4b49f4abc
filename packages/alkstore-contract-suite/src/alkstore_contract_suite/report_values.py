"""The values of a report, as they stand in ``report.json``; ``report.schema.json`` is made of these classes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.verdict import Verdict

__all__ = [
    "SCHEMA_VERSION",
    "CapabilityValue",
    "CaseValue",
    "CellValue",
    "EngineValue",
    "ExpectationValue",
    "FunctionValue",
    "Report",
    "ReportError",
    "RowValue",
    "RunValue",
    "SelectionValue",
    "encode",
    "json_schema",
    "read",
]

SCHEMA_VERSION: Final = 1
"""Grows when a field changes its meaning or goes; new fields do not change it, and readers pass over them."""

SCHEMA_FILE: Final = "report.schema.json"

Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, description="Seconds of real time.")]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class ReportError(Exception):
    """A file is no report that this suite can read, or reports do not fit together; the text says why."""


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stands in a report; a field with its default is left out."""


class CaseValue(Value, frozen=True, kw_only=True):
    """One test of a cell: what became of it, and all that is known of why."""

    status: Status
    reason: str = ""
    missing: str = ""
    promise: str = ""
    expected: str = ""
    observed: str = ""
    traceback: tuple[str, ...] = ()
    timeline: tuple[str, ...] = ()
    trace: Annotated[str, msgspec.Meta(description="Steps as text, which ``--alk-replay`` does again.")] = ""
    choices: Mapping[str, str] = {}
    seconds: Seconds = 0.0


class ExpectationValue(Value, frozen=True, kw_only=True):
    """The entry of ``contract-expectations.toml`` that lists a cell."""

    reason: str
    issue: str
    expires: str


class CellValue(Value, frozen=True, kw_only=True):
    """One row on one engine in one mode. The status is that of the test that speaks for all of them."""

    row: str
    mode: str
    status: Status
    reason: str = ""
    seconds: Seconds = 0.0
    cases: Mapping[str, CaseValue] = {}
    expectation: ExpectationValue | None = None


class CapabilityValue(Value, frozen=True, kw_only=True):
    """What an engine's author says of a capability; ``reason`` and ``what`` say why it is not there."""

    status: Literal["supported", "unsupported", "planned"]
    reason: str = ""
    what: str = ""


class SelectionValue(Value, frozen=True, kw_only=True):
    """Patterns of rows, and modes; an empty list means all. Profile smoke is one test of each row."""

    rows: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    profile: Literal["full", "smoke"] = "full"


class RunValue(Value, frozen=True, kw_only=True):
    """Where and how an engine was run."""

    python: str
    platform: str
    begun: Annotated[str, msgspec.Meta(description="The instant at which the run began, ISO 8601 in UTC.")]
    seed: int
    seconds: Seconds
    jobs: Annotated[int, msgspec.Meta(ge=1, description="In how many processes the cases were run.")]
    selection: SelectionValue = SelectionValue()


class EngineValue(Value, frozen=True, kw_only=True):
    """One engine, as it was run once."""

    name: str
    version: str
    contract: str
    clock: str
    storage: Annotated[
        str, msgspec.Meta(description="What the engine kept its rows in: 'PostgreSQL 16', say.")
    ] = ""
    verdict: Verdict
    counts: Mapping[str, Count]
    run: RunValue
    capabilities: Mapping[str, CapabilityValue]
    omitted: Mapping[str, str] = {}
    cells: tuple[CellValue, ...]


class FunctionValue(Value, frozen=True, kw_only=True):
    """One test of a row."""

    name: str
    text: str
    oracle: str
    level: str
    since: str
    modes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    kills: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    hints: str = ""


class RowValue(Value, frozen=True, kw_only=True):
    """A row of the contract, or of the factory, and its tests."""

    id: str
    text: str
    functions: tuple[FunctionValue, ...] = ()


class Report(Value, frozen=True, kw_only=True):
    """A run of the contract on some engines, or several runs merged: each engine says where it was run."""

    schema: Literal[1]
    contract: str
    suite: Annotated[str, msgspec.Meta(description="The version of the suite that made the report.")]
    rows: tuple[RowValue, ...]
    engines: tuple[EngineValue, ...]


class _Head(msgspec.Struct):
    schema: int


def read(path: Path) -> Report:
    """Read a ``report.json``.

    Raises:
        ReportError: It cannot be read, is of another version of the schema, or does not keep to it.
    """
    try:
        data = path.read_bytes()
        head = msgspec.json.decode(data, type=_Head)
        if head.schema != SCHEMA_VERSION:
            raise ReportError(
                f"{path} has schema {head.schema}, this suite reads {SCHEMA_VERSION}: "
                "use the suite that wrote it, or a newer one"
            )
        return msgspec.json.decode(data, type=Report)
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} is no report of the contract suite: {error}") from error


def encode(report: Report) -> bytes:
    """Give a report as JSON, laid out for people; it ends with a line break."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def json_schema() -> dict[str, Any]:
    """Give the JSON Schema of a report, as it stands in ``report.schema.json`` beside this module."""
    schema = msgspec.json.schema(Report)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Report of the alkstore contract suite, schema {SCHEMA_VERSION}",
    }
    # Defaults are tuples, which JSON does not have.
    return dict(msgspec.json.decode(msgspec.json.encode({**head, **schema})))
