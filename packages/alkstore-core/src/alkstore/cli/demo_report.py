"""What ``alkstore demo`` prints for people."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from alkstore.demo import Report
from alkstore.demo_source import BROKEN

__all__ = ["print_report"]


def print_report(console: Console, report: Report) -> None:
    """Print a report, the verdict last."""
    console.print(Text(f"Indexed {report.root}", style="bold"))
    totals = Table(show_header=False, box=None, pad_edge=False)
    for name, value in (*_totals(report), *_crew(report), *_proof(report)):
        totals.add_row(name, value)
    console.print(totals, "")
    longest = Table("longest function", "lines", "file", title_justify="left", box=None, pad_edge=False)
    for facts in report.longest:
        longest.add_row(Text(facts["longest"]), str(facts["longest_lines"]), Text(Path(facts["path"]).name))
    console.print(longest, "")
    dead = Table("dead job", "why, after its last attempt", box=None, pad_edge=False)
    for path, reason in report.dead:
        dead.add_row(Text(Path(path).name), Text(reason))
    console.print(dead)
    console.print(f"(the demo adds {len(BROKEN)} broken files, to show how work ends dead)\n", style="dim")
    if report.is_good:
        console.print(Text("verdict: good, nothing lost, nothing doubled, nothing left", style="bold green"))
    for problem in report.problems:
        console.print(Text(f"verdict: broken, it is not so that {problem}", style="bold red"))


def _totals(report: Report) -> Iterator[tuple[str, str]]:
    rate = report.files / report.seconds if report.seconds else 0.0
    yield "files", f"{report.files:,} = {report.acked:,} indexed + {len(report.dead):,} dead"
    yield "lines", f"{report.lines:,}"
    yield "functions", f"{report.functions:,}"
    yield "classes", f"{report.classes:,}"
    yield "events seen", f"{report.events:,}, each once" if report.is_good else f"{report.events:,}"
    yield "delivered", f"{report.delivered:,} lines of JSON"
    yield "snapshots", f"{report.snapshots:,} by the schedule"
    yield "time", f"{report.seconds:.1f} s, {rate:,.0f} files/s"


def _crew(report: Report) -> Iterator[tuple[str, str]]:
    crew, proof = report.crew, report.proof
    if crew is None:
        return
    yield "processes", f"{crew.processes:,} at work at once"
    yield "kills", f"{crew.kills:,}, each followed by a new start" if crew.kills else crew.remark or "none"
    if proof is not None:
        yield "claimed again", f"{proof.claimed_again:,}, since the worker before did not end them"


def _proof(report: Report) -> Iterator[tuple[str, str]]:
    """The sum is counted from the events that were committed with the acks, and from the dead jobs."""
    proof = report.proof
    if proof is not None:
        yield (
            "proof",
            f"{proof.enqueued:,} jobs = {proof.acked:,} acked + {proof.dead:,} dead, "
            f"{len(proof.lost):,} lost, {len(proof.doubled):,} with two effects",
        )
