"""``alkstore migrate``: a storage's schema made and brought up to date, by hand or by somebody with other rights."""

import asyncio
from collections.abc import Mapping, Sequence

import click

from alkstore.cli.output import emit
from alkstore.cli.storage import Storage, is_given, json_option, options_of, options_option
from alkstore.errors import AlkstoreError
from alkstore.hookspecs import EngineRegistration

__all__ = ["migrate"]


@click.command(short_help="Bring the tables of a storage up to date.")
@click.argument("url", required=False)
@click.option("--url", "given", envvar="ALKSTORE_URL", metavar="URL", help="The same.  [ALKSTORE_URL]")
@click.option(
    "--schema",
    envvar="ALKSTORE_SCHEMA",
    help="The schema of a database that holds the store.  [default: the engine's]",
)
@options_option
@click.option("--sql", "as_sql", is_flag=True, help="Print what would be run, and change nothing.")
@click.option(
    "--grant-to", metavar="ROLE", help="With --sql: also what lets ROLE use it, and change no table."
)
@json_option
def migrate(
    url: str | None,
    given: str | None,
    schema: str | None,
    options: Sequence[str],
    as_sql: bool,
    grant_to: str | None,
    as_json: bool,
) -> None:
    """Bring the storage at URL up to date, as opening it does.

    It is one transaction: done whole, or not at all; harmless when there is nothing to do. Applications that open
    their stores with migrate=False need no right to change tables.
    """
    if grant_to is not None and not as_sql:
        raise click.UsageError("--grant-to prints SQL for whoever may grant: --sql --grant-to ROLE")
    if url and is_given("given") and given != url:
        raise click.UsageError("which storage is meant? URL and --url are not the same: give one")
    url = url or given
    if not url:
        raise click.UsageError("which storage is meant? give URL, or set ALKSTORE_URL")
    if as_sql and as_json:
        raise click.UsageError("--sql prints SQL, and no JSON")
    storage = Storage(url, schema, options_of(options))
    try:
        registration, url = storage.found()
        if as_sql:
            click.echo(asyncio.run(_script(registration, url, storage.options, grant_to)), nl=False)
        else:
            asyncio.run(_apply(registration, url, storage.options, as_json))
    except AlkstoreError as error:
        raise click.ClickException(str(error)) from error


async def _script(
    registration: EngineRegistration, url: str, options: Mapping[str, object], grant_to: str | None
) -> str:
    if registration.migration_sql is None:
        raise _nothing(url)
    text = await registration.migration_sql(url, options, grant_to)
    if not text:
        # On the other output: what is read by psql is SQL.
        click.echo("up to date, there is nothing to run", err=True)
    return text


async def _apply(
    registration: EngineRegistration, url: str, options: Mapping[str, object], as_json: bool
) -> None:
    if registration.migrate is None:
        raise _nothing(url)
    applied = await registration.migrate(url, options)
    for migration in applied:
        if as_json:
            emit({"version": migration.version, "name": migration.name})
            continue
        click.echo(f"applied {migration.version:04} {migration.name}")
    if not applied and not as_json:
        click.echo("up to date, there was nothing to do")


def _nothing(url: str) -> click.ClickException:
    return click.ClickException(
        f"{url.partition('://')[0]}:// has no schema that could be brought up to date"
    )
