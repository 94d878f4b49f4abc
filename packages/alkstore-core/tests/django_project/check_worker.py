"""``manage.py alkstore_worker``: it works with the ORM, and never on an order that it cannot see."""

import io
import signal
import subprocess
import sys
import time

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import Client
from shop import jobs
from shop.models import Missed, Order

import alkstore.django

IN_MEMORY = "URL" in settings.ALKSTORE

durable = pytest.mark.skipif(IN_MEMORY, reason="its jobs are seen by no other process")


def place(number: int, **more: object) -> None:
    Client().post("/orders", {"number": number, **more}, content_type="application/json")


def work() -> str:
    said = io.StringIO()
    call_command("alkstore_worker", "shop.jobs:worker", "--until-idle", stdout=said)
    return said.getvalue()


@durable
def test_every_order_is_confirmed_and_none_before_it_can_be_seen() -> None:
    command = [sys.executable, "-m", "django", "alkstore_worker", "shop.jobs:worker"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        for number in range(40):
            place(number, twice=number % 4 == 0)
        deadline = time.monotonic() + 60
        while Order.objects.filter(confirmed=True).count() < 30 and time.monotonic() < deadline:
            alkstore.django.store().queue("confirmed").run_once(lambda handle: None)
        worker.send_signal(signal.SIGTERM)
        said, errors = worker.communicate(timeout=60)

    assert worker.returncode == 0, errors
    assert said.startswith("done 30")
    assert (Order.objects.filter(confirmed=True).count(), Missed.objects.count()) == (30, 0)


@durable
def test_handlers_enqueue_in_transactions_of_their_own() -> None:
    place(7)

    assert work().startswith("done 1")
    found = alkstore.django.store().queue("confirmed").list()
    assert [job.payload for job in found] == [7]


@durable
def test_a_handlers_connection_is_closed_as_a_requests_is() -> None:
    jobs.USED.clear()
    place(1)
    place(2)

    work()

    assert len(jobs.USED) == 2
    assert [used.connection for used in jobs.USED] == [None, None]


@durable
def test_a_traceback_begins_with_the_handler() -> None:
    alkstore.django.enqueue("confirmations", {"digit": 7}, max_attempts=1)

    work()

    (job,) = alkstore.django.store().queue("confirmations").list()
    first, second = (job.last_error or "").splitlines()[:2]
    assert first == "builtins.KeyError: 'number'"
    assert second.startswith(f'  File "{jobs.__file__}"')


@durable
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop", "target must be module:worker"),
        ("shop.nowhere:worker", "there is no module 'shop.nowhere'"),
        ("shop.jobs:nothing", "module 'shop.jobs' has no 'nothing'"),
        ("shop.jobs:USED", r"must be an alkstore\.worker\.Worker or give one"),
    ],
)
def test_what_is_no_worker_is_refused(target: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        call_command("alkstore_worker", target)


@pytest.mark.skipif(not IN_MEMORY, reason="the store outlives its process")
def test_a_store_in_memory_has_no_worker_elsewhere() -> None:
    with pytest.raises(CommandError, match="ends with its process"):
        call_command("alkstore_worker", "shop.jobs:worker")
