from typing import Any

from django.db import connection, transaction
from shop.models import Missed, Order

import alkstore
import alkstore.django
from alkstore.worker import Worker

__all__ = ["USED", "confirm", "worker"]

USED: list[Any] = []
"""The database connections that handlers had."""


def confirm(payload: dict[str, int]) -> None:
    USED.append(connection._connections[connection.alias])
    with transaction.atomic():
        found = Order.objects.filter(number=payload["number"]).update(confirmed=True)
        if not found:
            Missed.objects.create(number=payload["number"])
        alkstore.django.enqueue("confirmed", payload["number"])


def worker(store: alkstore.Store) -> Worker:
    return Worker(store, {"confirmations": confirm})
