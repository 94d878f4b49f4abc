"""``alkstore demo``: real work on real input, checked at the end."""

import asyncio
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import alkstore
from alkstore.cli import INTERRUPTED
from alkstore.demo import Report, run
from alkstore.demo_source import BROKEN

__all__ = ["demo"]


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--url", default="mem://", show_default=True, help="Which engine to run on.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def demo(path: Path | None, url: str, as_json: bool) -> None:
    """Index the Python files under PATH (by default the standard library) and check that nothing was lost."""
    console = Console(stderr=as_json)
    try:
        with tempfile.TemporaryDirectory(prefix="alkstore-demo-") as scratch:
            report = asyncio.run(_index(url, path, Path(scratch), console))
    except alkstore.AlkstoreError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("stopped by Ctrl-C", err=True)
        sys.exit(INTERRUPTED)
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(report), "is_good": report.is_good}))
    else:
        _print(console, report)
    sys.exit(0 if report.is_good else 1)


async def _index(url: str, path: Path | None, scratch: Path, console: Console) -> Report:
    columns = (TextColumn("indexing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("indexing", total=None)
        async with alkstore.open(url) as store:
            return await run(
                store, path, scratch, lambda done, total: bar.update(task, completed=done, total=total)
            )


def _print(console: Console, report: Report) -> None:
    console.print(Text(f"Indexed {report.root}", style="bold"))
    rate = report.files / report.seconds if report.seconds else 0.0
    totals = Table(show_header=False, box=None, pad_edge=False)
    for name, value in (
        ("files", f"{report.files:,} = {report.acked:,} indexed + {len(report.dead):,} dead"),
        ("lines", f"{report.lines:,}"),
        ("functions", f"{report.functions:,}"),
        ("classes", f"{report.classes:,}"),
        ("events seen", f"{report.events:,}, each once" if report.is_good else f"{report.events:,}"),
        ("delivered", f"{report.delivered:,} lines of JSON"),
        ("snapshots", f"{report.snapshots:,} by the schedule"),
        ("time", f"{report.seconds:.1f} s, {rate:,.0f} files/s"),
    ):
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
