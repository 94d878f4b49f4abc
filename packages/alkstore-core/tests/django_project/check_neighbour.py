"""What the application must leave alone in a project: its migrations, its checks, its dumps, its databases."""

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

from django.apps import apps
from django.core.management import call_command
from django.db import connections
from django.test.utils import override_settings

import alkstore.django
from alkstore.django.models import DeadJob


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def test_no_check_has_anything_to_say() -> None:
    call_command("check", fail_level="WARNING")


def test_no_migration_is_wanted() -> None:
    call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)


def test_dumps_go_on_and_hold_nothing_of_it() -> None:
    dumped = io.StringIO()
    call_command("dumpdata", stdout=dumped)

    assert not [each for each in json.loads(dumped.getvalue()) if each["model"] == "alkstore.deadjob"]
    assert DeadJob.objects.count() == 0


def test_migrating_makes_alkstores_tables_in_the_database_of_the_setting_alone() -> None:
    default, elsewhere = (Path(connections[name].settings_dict["NAME"]) for name in ("default", "elsewhere"))

    call_command("migrate", database="elsewhere", run_syncdb=True, verbosity=0)

    assert "alkstore_job" in tables(default)
    assert "alkstore_job" not in tables(elsewhere)
    assert not [name for name in tables(default) if "deadjob" in name]


def test_migrating_leaves_the_tables_to_others_where_the_options_say_so(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    for options, is_there in (({"migrate": False}, False), ({}, True)):
        with override_settings(ALKSTORE={"URL": f"sqlite:///{path}", "OPTIONS": options}):
            call_command("migrate", run_syncdb=True, verbosity=0)
            assert path.exists() == is_there


def test_a_test_database_in_memory_is_migrated_without_a_word() -> None:
    connection = connections["default"]
    before = connection.settings_dict
    connection.settings_dict = {**before, "NAME": ":memory:"}
    try:
        call_command("migrate", run_syncdb=True, verbosity=0)
    finally:
        connection.settings_dict = before


def test_the_application_is_called_by_its_name() -> None:
    assert apps.get_app_config("alkstore").name == alkstore.django.__name__
