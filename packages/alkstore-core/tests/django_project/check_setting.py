"""What the setting ``ALKSTORE`` may say, and which store that names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.test.utils import override_settings

import alkstore
import alkstore.django
from alkstore.django.setting import configuration


def url(**given: Any) -> str:
    """Give the URL for a database of such settings."""
    connection = connections["default"]
    before = connection.settings_dict
    connection.settings_dict = {**before, "OPTIONS": {}, **given}
    try:
        return configuration().url
    finally:
        connection.settings_dict = before


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/srv/app data/a?b.db", "sqlite:////srv/app%20data/a%3Fb.db"),
        (Path("/srv/a.db"), "sqlite:////srv/a.db"),
        ("a.db", "sqlite:///a.db"),
    ],
)
def test_a_file_is_named_as_alkstore_names_it(name: str | Path, expected: str) -> None:
    assert url(NAME=name) == expected


def test_a_server_is_named_with_all_that_connecting_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "postgresql", raising=False)
    given = {"NAME": "shop & co", "HOST": "db", "PORT": 5433, "USER": "ada", "PASSWORD": "p@ss/w"}

    assert url(**given, OPTIONS={"sslmode": "require", "pool": True}) == (
        "postgresql:///shop%20%26%20co?host=db&port=5433&user=ada&password=p%40ss%2Fw&sslmode=require"
    )
    assert url(NAME="shop", HOST="", PORT="", USER="", PASSWORD="") == "postgresql:///shop?"


@pytest.mark.parametrize("name", [":memory:", "file:memorydb_default?mode=memory&cache=shared"])
def test_a_database_in_memory_cannot_hold_a_store(name: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"in tests give the database a file"):
        url(NAME=name)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "must be a dict, got list"),
        ({"URI": "mem://"}, "has no key 'URI'; it takes DATABASE, OPTIONS, URL"),
        ({"URL": 7}, "its URL must be text, got int"),
        ({"DATABASE": "nowhere"}, "names the database 'nowhere', and DATABASES has none"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error_of_the_projects(given: object, said: str) -> None:
    with override_settings(ALKSTORE=given), pytest.raises(ImproperlyConfigured, match=said):
        alkstore.django.store()


def test_a_database_without_an_engine_needs_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "oracle", raising=False)

    with pytest.raises(ImproperlyConfigured, match="no engine for oracle, which database 'default' is on"):
        configuration()


def test_another_database_and_options_are_taken() -> None:
    given: Mapping[str, object] = {"DATABASE": "elsewhere", "OPTIONS": {"wait_timeout": 7}}
    with override_settings(ALKSTORE=given):
        found = configuration()

        assert found.url.endswith("elsewhere.db")
        assert found.options == {"wait_timeout": 7}
        assert "elsewhere" not in repr(found)


def test_an_option_that_no_engine_has_is_told_by_alkstore() -> None:
    with (
        override_settings(ALKSTORE={"OPTIONS": {"colour": "red"}}),
        pytest.raises(alkstore.InvalidArgument, match="no option 'colour'"),
    ):
        alkstore.django.store()
