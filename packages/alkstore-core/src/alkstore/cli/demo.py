"""``alkstore demo``: real work on real input, checked at the end."""

import asyncio
import dataclasses
import json
import random
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

import alkstore
from alkstore.cli import INTERRUPTED
from alkstore.cli.demo_report import print_report
from alkstore.demo import Report, run
from alkstore.demo_crew import MOST_KILLS, CrewPlan, check_plan

__all__ = ["demo"]


@click.command(short_help="Do real work on real input, and check it.")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--url", help="Which storage to work on.  [default: SQLite in a temporary folder]")
@click.option(
    "--processes",
    type=click.IntRange(min=0),
    default=0,
    help="Work in so many processes; by default in tasks of one.",
)
@click.option("--kill", is_flag=True, help="Kill the processes at random while they work.")
@click.option("--seed", type=int, help="Repeat the chances of another run; it does not repeat its timing.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def demo(
    path: Path | None, url: str | None, processes: int, kill: bool, seed: int | None, as_json: bool
) -> None:
    """Index the Python files under PATH (by default the standard library) and check that nothing was lost."""
    if kill and not processes:
        raise click.UsageError("--kill needs processes to kill: --processes 3 --kill")
    console = Console(stderr=as_json)
    seed = secrets.randbelow(2**32) if seed is None else seed
    plan = CrewPlan(url or "", processes, MOST_KILLS if kill else 0, seed)
    report = _run(path, url, plan, console)
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(report), "is_good": report.is_good}))
    else:
        print_report(console, report)
    sys.exit(0 if report.is_good else 1)


def _run(path: Path | None, url: str | None, plan: CrewPlan, console: Console) -> Report:
    try:
        # Windows removes no file that a process which was just killed has not quite let go of.
        on_windows = sys.platform == "win32"
        with tempfile.TemporaryDirectory(prefix="alkstore-demo-", ignore_cleanup_errors=on_windows) as folder:
            scratch = Path(folder)
            if url is None:
                plan = dataclasses.replace(plan, url=_url_within(scratch))
            return asyncio.run(_index(plan, path, scratch, console))
    except KeyboardInterrupt:
        click.echo("stopped by Ctrl-C", err=True)
        sys.exit(INTERRUPTED)
    except (alkstore.AlkstoreError, OSError, ExceptionGroup) as error:
        causes = list(_leaves(error))
        if not all(isinstance(cause, alkstore.AlkstoreError | OSError) for cause in causes):
            raise  # a mistake of the demo's own: its traceback is wanted
        raise click.ClickException("; ".join(map(str, causes))) from error


def _leaves(error: Exception) -> Iterator[Exception]:
    """Give the errors of a group that hold no others."""
    if isinstance(error, ExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def _url_within(folder: Path) -> str:
    return "sqlite:///" + quote((folder / "demo.db").as_posix(), safe="/:")


async def _index(plan: CrewPlan, path: Path | None, scratch: Path, console: Console) -> Report:
    is_temporary = plan.url == _url_within(scratch)
    crew = plan if plan.processes else None
    if crew is not None:
        check_plan(crew)
    columns = (TextColumn("indexing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with _open(plan, is_temporary) as store:
        console.print(Text(_place(plan, is_temporary), style="dim"), soft_wrap=True)
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("indexing", total=None)

            def show(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            return await run(store, path, scratch, show, plan=crew)


def _open(plan: CrewPlan, is_temporary: bool) -> alkstore.Store:
    try:
        return alkstore.open(plan.url, random=random.Random(plan.seed))
    except alkstore.InvalidArgument as error:
        if not is_temporary:
            raise
        # Another engine is for the user to choose: on memory the demo shows less.
        raise click.ClickException(
            f"{error}; or see it work in memory: alkstore demo --url mem://"
        ) from error


def _place(plan: CrewPlan, is_temporary: bool) -> str:
    """Tell where it runs, without the rest of the URL, which may hold a password."""
    place = plan.url.partition("://")[0] + (", in a temporary folder" if is_temporary else "")
    crew = f", worker processes: {plan.processes}" if plan.processes else ""
    kills = f", killed at random (--seed {plan.seed})" if plan.kills else ""
    return f"runs on {place}{crew}{kills}"
