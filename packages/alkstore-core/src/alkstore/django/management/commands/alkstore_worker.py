"""``manage.py alkstore_worker module:worker``: works on jobs until it is told to stop."""

import asyncio
import dataclasses
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from alkstore import opening
from alkstore.django.handling import made
from alkstore.django.setting import Configuration, configuration
from alkstore.errors import AlkstoreError
from alkstore.worker import Counts
from alkstore.worker.target import load

__all__ = ["Command"]


class Command(BaseCommand):
    """Works on jobs; SIGTERM or Ctrl-C stops it, a second one at once."""

    help = (
        "Work on the jobs of alkstore's queues until told to stop: SIGTERM or Ctrl-C, a second one at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Say what it takes."""
        parser.add_argument(
            "target",
            metavar="module:worker",
            help="an alkstore.worker.Worker, or a function that gives one; "
            "a function with a parameter gets the store of the settings",
        )
        parser.add_argument("--until-idle", action="store_true", help="end once nothing is ready")

    def handle(self, *_: Any, target: str, until_idle: bool, **__: Any) -> None:
        """Work.

        Raises:
            CommandError: There is no such worker, the settings cannot be, or the storage is away at the start.
        """
        wanted = configuration()
        try:
            registration, _url = opening.find(wanted.url, wanted.options)
            if not registration.durable:
                raise CommandError(
                    "the store of the settings ends with its process: no other one works on its jobs"
                )
            # Not within the loop, where Django refuses the ORM: a module may ask it something when it is imported.
            value = load(target)
            counts = asyncio.run(_work(value, target, wanted, until_idle=until_idle))
        except AlkstoreError as error:
            raise CommandError(str(error)) from error
        found = dataclasses.asdict(counts)
        self.stdout.write(", ".join(f"{name} {count:,}" for name, count in found.items()))


async def _work(value: object, target: str, wanted: Configuration, *, until_idle: bool) -> Counts:
    async with made(value, target, wanted) as worker:
        return await (worker.run_until_idle() if until_idle else worker.run())
