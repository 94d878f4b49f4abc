"""Options that contradict each other, or mean more than anybody asked for: each is refused, and nothing is done."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from alkstore.cli.command import command
from alkstore.cli.storage import options_of


def said(*words: str, given: str = "", env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(command, list(words), input=given, env=env)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["enqueue", "q", "--delay", "5", "--run-at", "2030-01-31T07:00:00Z"],
            "each say when a job is ready",
        ),
        (["enqueue", "q", "--header", "a=1", "--header", "b=1", "--header", "a=2"], "'a' is given twice"),
        (["dead", "purge", "q", "--older-than", "-1d"], "'-1d' is less than nothing"),
        (["dead", "purge", "q", "--older-than", "1d", "--all"], "which ones?"),
        (["dead", "redrive", "q", "7", "--all"], "which ones?"),
        (["tail", "s", "--after", "1", "--last", "1"], "give one"),
        (["tail", "s", "--peek"], "--peek goes with --consumer"),
        (["work", "m:w", "--timeout", "5"], "--timeout goes with --exec"),
        (["migrate", "sqlite:///other.db"], "URL and --url are not the same"),
        (["queues", "--option", "wait_timeout"], "--option takes NAME=VALUE"),
        (["migrate", "--option", "=1"], "--option takes NAME=VALUE"),
        (
            ["queues", "--option", "wait_timeout=1", "--option", "wait_timeout=2"],
            "wait_timeout is given twice",
        ),
        (["queues", "--option", "cache_size=1"], "has no option 'cache_size'; it takes"),
        (["enqueue", "q", "--option", "url=sqlite:///other.db"], "has no option 'url'; it takes"),
        (["work", "q", "--exec", "true", "--option", "url=mem://"], "has no option 'url'; it takes"),
        *(
            ([*words, "--option", "observers=x"], "--option cannot give observers")
            for words in (["enqueue", "q"], ["work", "q", "--exec", "true"], ["migrate"], ["queues"])
        ),
        (["migrate", "--grant-to", "r"], "--sql --grant-to ROLE"),
        (["migrate", "--sql", "--json"], "no JSON"),
    ],
)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)

    result = said(*words, "--url", "sqlite:///app.db", given="1\n")

    assert result.exit_code == 2
    assert reason in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["postgresql://ada:s3cret@db/app?sslmode=require", "listener_dsn:s3cret"])
def test_what_is_no_option_is_not_shown_since_it_may_hold_a_password(option: str) -> None:
    result = said("queues", "--url", "sqlite:///app.db", "--option", "wait_timeout=1", "--option", option)

    assert result.exit_code == 2
    assert "number 2 of those given" in result.output
    assert "s3cret" not in result.output


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("durability=process", ""),
        ("durability=2", "durability"),
        ("wait_timeout=true", "wait_timeout must be seconds (int, float)"),
        ("wait_timeout=0.5", ""),
        ("wait_timeout=2", ""),
    ],
)
@pytest.mark.parametrize("way", ["option", "variable"])
def test_an_option_reaches_the_engines_store_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, reason: str, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"ALKSTORE_URL": "sqlite:///app.db"}
    words = ["--option", option] if way == "option" else []
    if way == "variable":
        env["ALKSTORE_OPTIONS"] = f"{option} poll_interval=1"

    result = said("enqueue", "q", *words, given="1\n", env=env)

    assert (result.exit_code, reason in result.output) == (2 if reason else 0, True)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        *((f"{name}=12", "12") for name in ("worker_id", "schema", "listener_dsn", "durability")),
        ("worker_id=true", "true"),
        ("schema=1e3", "1e3"),
        ('worker_id="12"', '"12"'),
        ("pool_size=12", 12),
        ("pool_size=-1", -1),
        ("wait_timeout=.5", 0.5),
        ("wait_timeout=1e-3", 0.001),
        ("listen=false", False),
        ('pages="12"', "12"),
        ('pages="true"', "true"),
        ('pages="', '"'),
        ("pages=1_0", "1_0"),
        ("pages=\u0661\u0662", "\u0661\u0662"),
        ("pages= 12", " 12"),
        ("pages=nan", "nan"),
        ("pages=inf", "inf"),
        ("pages=", ""),
        ("pages=" + "9" * 5_000, "9" * 5_000),
    ],
)
def test_what_an_option_says_is_text_a_number_or_a_truth(given: str, value: object) -> None:
    (found,) = options_of([given]).values()

    assert (type(found), found) == (type(value), value)


def test_an_id_of_digits_reaches_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    result = said("enqueue", "q", "--url", "sqlite:///app.db", "--option", "worker_id=12", given="1\n")

    assert result.exit_code == 0


def test_an_argument_takes_the_place_of_what_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = said("migrate", "sqlite:///app.db", env={"ALKSTORE_URL": "sqlite:///other.db"})

    assert result.exit_code == 0
    assert (tmp_path / "app.db").exists()
    assert not (tmp_path / "other.db").exists()
