"""The application, as Django knows it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from alkstore import opening
from alkstore.django.setting import Configuration, configuration, database, is_without_file

__all__ = ["AlkstoreConfig"]


class AlkstoreConfig(AppConfig):
    """``"alkstore.django"`` in ``INSTALLED_APPS``."""

    name = "alkstore.django"
    label = "alkstore"
    verbose_name = "alkstore"

    def ready(self) -> None:
        """Have ``manage.py migrate``, and with it each test database, bring alkstore's tables up to date too."""
        post_migrate.connect(_migrate, sender=self)


def _migrate(using: str, **_: object) -> None:
    if using != database() or is_without_file():
        return
    wanted = configuration()
    if wanted.options.get("migrate", True):
        # In a thread of its own, for the caller may be in an event loop.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_bring_up_to_date, wanted).result()


def _bring_up_to_date(wanted: Configuration) -> None:
    registration, url = opening.find(wanted.url, wanted.options)
    if registration.migrate is not None:
        migrate = registration.migrate(url, wanted.options)

        async def run() -> None:
            _ = await migrate

        asyncio.run(run())
