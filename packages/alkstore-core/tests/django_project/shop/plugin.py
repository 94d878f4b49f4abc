"""What pytest needs of the project: Django set up, its tables made by ``migrate``, and emptied between tests."""

from collections.abc import Iterator

import django
import pytest

__all__ = ["emptied"]


def pytest_configure() -> None:
    django.setup()
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    """Leave neither orders, nor users, nor jobs to the next test."""
    from django.contrib.auth.models import User
    from shop.models import Missed, Order

    from alkstore.django import store

    yield
    for model in (Missed, Order, User):
        model.objects.all().delete()
    opened = store()
    for name in opened.queues():
        queue = opened.queue(name)
        for handle in queue.claim_batch(1_000):
            handle.ack()
        for job in queue.list():
            queue.cancel(job.id)
        queue.purge_dead(older_than=0)


@pytest.hookimpl
def pytest_unconfigure() -> None:
    from django.db import connections

    connections.close_all()
