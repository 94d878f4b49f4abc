"""A Django project, run on each database in a process of its own: Django is set up once in a process, and for good."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from alkstore_pg import contract_dsn, contract_server

PROJECT = Path(__file__).parent / "django_project"

STORES = ("sqlite", "postgresql", "mem")


@pytest.fixture
def postgresql() -> Iterator[Mapping[str, object]]:
    """Settings of an empty database on the tests' server."""
    if advice := contract_server.available():
        pytest.skip(advice)
    server, name = contract_server.shared(), f"alkstore_django_{os.getpid()}"
    dsn = server.create_database(name)
    address = contract_dsn.address(server.dsn)
    password = urlsplit(dsn).password
    yield {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "HOST": address.host,
        "PORT": str(address.port),
        "USER": contract_dsn.user(dsn),
        "PASSWORD": unquote(password or ""),
    }
    server.drop_database(name)


def sqlite(path: Path) -> Mapping[str, object]:
    options = {"transaction_mode": "IMMEDIATE", "timeout": 20}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": options}


@pytest.fixture(params=STORES)
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Mapping[str, str]:
    """What the project's settings are made of."""
    is_on_server = request.param == "postgresql"
    database = request.getfixturevalue("postgresql") if is_on_server else sqlite(tmp_path / "shop.db")
    databases = {"default": database, "elsewhere": sqlite(tmp_path / "elsewhere.db")}
    store = {"URL": "mem://"} if request.param == "mem" else {}
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "PYTHONPATH": str(PROJECT),
        "SHOP_DATABASES": json.dumps(databases),
        "SHOP_ALKSTORE": json.dumps(store),
    }


def check(environment: Mapping[str, str], *names: str) -> None:
    """Run checks of the project by a pytest of their own."""
    paths = [str(PROJECT / f"check_{name}.py") for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "shop.plugin", "-p", "no:cacheprovider", *paths],
        env=dict(environment),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_an_order_and_its_job_land_together_or_not_at_all(environment: Mapping[str, str]) -> None:
    check(environment, "orders", "testcase")


def test_a_worker_works_on_what_views_enqueue_and_the_admin_on_what_died(
    environment: Mapping[str, str],
) -> None:
    check(environment, "worker", "process", "admin")


@pytest.mark.parametrize("environment", ["sqlite"], indirect=True)
def test_settings_are_read_and_the_application_is_a_good_neighbour(environment: Mapping[str, str]) -> None:
    check(environment, "setting", "neighbour")
