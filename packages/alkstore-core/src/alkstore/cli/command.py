"""The command and its subcommands."""

import sys

import click

from alkstore.cli import READER_GONE
from alkstore.cli.dashboard import dashboard
from alkstore.cli.dead import dead
from alkstore.cli.demo import demo
from alkstore.cli.doctor import doctor
from alkstore.cli.enqueue import enqueue
from alkstore.cli.jobs import jobs
from alkstore.cli.migrate import migrate
from alkstore.cli.output import discard_output
from alkstore.cli.queues import queues
from alkstore.cli.schedules import locks, schedules
from alkstore.cli.tail import listen, tail
from alkstore.cli.work import work
from alkstore.version import __version__

__all__ = ["command"]


class _Command(click.Group):
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader has seen enough, as in `| head`
            discard_output()
            sys.exit(READER_GONE)


@click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="alkstore")
def command() -> None:
    """Durable work with one meaning in memory, on SQLite and on PostgreSQL."""


for _each in (
    dashboard, dead, demo, doctor, enqueue, jobs, listen, locks, migrate, queues, schedules, tail, work,
):  # fmt: skip
    command.add_command(_each)
del _each
