"""The command and its subcommands."""

import click

from alkstore.cli.demo import demo
from alkstore.cli.migrate import migrate
from alkstore.version import __version__

__all__ = ["command"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="alkstore")
def command() -> None:
    """Durable work with one meaning in memory, on SQLite and on PostgreSQL."""


command.add_command(demo)
command.add_command(migrate)
