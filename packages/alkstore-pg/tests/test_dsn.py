import pytest

from alkstore import InvalidArgument
from alkstore_pg.dsn import read

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("dsn", "host", "database"),
    [
        ("postgresql://ada:hunter2@db.example:5433/app", "db.example:5433", "app"),
        ("postgres://db/app", "db", "app"),
        ("postgresql+asyncpg://db/app", "db", "app"),
        ("POSTGRESQL://db/app", "db", "app"),
        ("postgresql://db1:1,db2:2/app?target_session_attrs=read-write", "db1:1,db2:2", "app"),
        ("postgresql://[::1]:5432/app", "[::1]:5432", "app"),
        ("postgresql:///app?host=/run/postgresql&port=5433", "/run/postgresql", "app"),
        ("postgresql://%2Frun%2Fpostgresql/app", "/run/postgresql", "app"),
        ("postgresql://ada:hunter%402@db/app%40home?sslmode=require", "db", "app@home"),
        ("postgresql://db?dbname=app&user=ada", "db", "app"),
        ("postgresql://ada@db", "db", "ada"),
        ("postgresql://", "localhost", "the user's own"),
    ],
)
def test_a_dsn_says_where_the_database_is(
    dsn: str, host: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGDATABASE", "PGUSER"):
        monkeypatch.delenv(name, raising=False)

    address = read(dsn, "dsn")

    assert (address.host, address.database) == (host, database)
    assert address.dsn == "postgresql://" + dsn.partition("://")[2]


def test_what_a_dsn_leaves_out_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "elsewhere")
    monkeypatch.setenv("PGDATABASE", "app")

    address = read("postgresql://", "dsn")

    assert (address.host, address.database) == ("elsewhere", "app")


@pytest.mark.parametrize(
    "dsn",
    [
        None,
        b"postgresql://ada:hunter2@db/app",
        "",
        "host=db user=ada password=hunter2",
        "ada:hunter2@db/app",
        "mysql://ada:hunter2@db/app",
        "postgresql+psycopg://ada:hunter2@db/app",
        "hunter2=x y://db",
        "postgresql://ada:hunter2@db:port/app",
        "postgresql://ada:hunter2@db:0/app",
        "postgresql://ada:hunter2@db:65536/app",
        "postgresql://ada:hunter2/x@db/app",
        "postgresql://ada:hunter2@x@db/app",
        "postgresql://ada:hunter2#x@db/app",
        "postgresql://ada:hunter2?x@db/app",
        "postgresql://ada:1/hunter2@db/app",
        "postgresql://ada:hunter2@db/app#x",
        "postgresql://ada:hunter2@[::1/app",
        "postgresql://ada:hunter2@db/app?sslmode",
        "postgresql://db/app?password=hunter2&sslmode=maybe",
        "postgresql://db/app?password=hunter2&target_session_attrs=best",
        "postgresql:///app?password=hunter2&host=/run&port=x",
        "postgresql://ada:hunter2\n@db/app",
        "postgresql://ada:hunter2\ud800@db/app",
        "postgresql://ada:hunter2\u2100@db/app",
    ],
)
def test_a_wrong_dsn_is_refused_by_name_and_no_password_is_shown(dsn: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^listener_dsn must|^listener_dsn cannot") as caught:
        read(dsn, "listener_dsn")

    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert SECRET not in str(caught.value.__context__ if not caught.value.__suppress_context__ else "")


@pytest.mark.parametrize("name", ["connect_timeout", "channel_binding", "keepalives_idle"])
def test_a_setting_of_libpq_that_the_driver_does_not_know_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"dsn must not hold {name}; leave it out"):
        read(f"postgresql://db/app?sslmode=require&{name}=7", "dsn")
