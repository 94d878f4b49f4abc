import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from alkstore import _plugins
from alkstore._plugins import Installed, choose, discover
from alkstore.errors import InvalidArgument
from alkstore.version import CONTRACT_VERSION

Install = Callable[..., None]

ENGINE = """
from alkstore.hookspecs import EngineRegistration, hookimpl

@hookimpl
def alkstore_engine():
    return EngineRegistration(
        schemes={schemes!r}, open=lambda url, options: None, package={distribution!r},
        contract_version={version!r}, durable=True,
    )
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Give a function that puts a distribution with one entry point on the path, as pip would."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(
        distribution: str,
        *schemes: str,
        source: str = ENGINE,
        version: str = CONTRACT_VERSION,
        point: str = "engine",
    ) -> None:
        module = distribution.replace("-", "_")
        text = source.replace("{schemes!r}", repr(schemes)).replace("{distribution!r}", repr(distribution))
        (tmp_path / f"{module}.py").write_text(text.replace("{version!r}", repr(version)))
        folder = tmp_path / f"{module}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[alkstore]\n{point} = {module}\n")

    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]
    _plugins._installed.cache_clear()


def refusal(installed: Installed, scheme: str) -> str:
    with pytest.raises(InvalidArgument) as caught:
        choose(installed, scheme)
    return str(caught.value)


def test_an_installed_engine_is_found_by_each_of_its_schemes(install: Install) -> None:
    install("ledger-engine", "ledger", "ledger+tcp")

    installed = discover()

    assert choose(installed, "ledger").package == "ledger-engine"
    assert choose(installed, "ledger+tcp").package == "ledger-engine"


def test_an_engine_installed_after_the_first_look_is_found(install: Install) -> None:
    with pytest.raises(InvalidArgument):
        _plugins.find_engine("ledger")

    install("ledger-engine", "ledger")

    assert _plugins.find_engine("ledger").package == "ledger-engine"


def test_two_engines_of_one_scheme_are_refused_by_the_names_of_both_distributions(install: Install) -> None:
    install("ledger-engine", "ledger", "ledger2")
    install("other-ledger", "ledger")

    installed = discover()

    message = refusal(installed, "ledger")
    assert "ledger-engine" in message
    assert "other-ledger" in message
    assert choose(installed, "ledger2").package == "ledger-engine"


def test_an_engine_of_another_contract_major_is_refused_with_both_versions(install: Install) -> None:
    install("ledger-engine", "ledger", version="7.3")

    message = refusal(discover(), "ledger")

    assert "7.3" in message
    assert CONTRACT_VERSION in message
    assert "ledger-engine" in message


def test_an_engine_of_another_contract_minor_is_taken(install: Install) -> None:
    install("ledger-engine", "ledger", version="1.999")

    assert choose(discover(), "ledger").contract_version == "1.999"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise RuntimeError('no licence found')", "no licence found"),
        ("import a_driver_that_nobody_has", "a_driver_that_nobody_has"),
        ("", "no EngineRegistration"),
        (
            "from alkstore.hookspecs import hookimpl\n@hookimpl\ndef alkstore_engine(): return 7",
            "no EngineRegistration",
        ),
        (
            "from alkstore.hookspecs import hookimpl\n@hookimpl\ndef alkstore_engine(): raise OSError('bad disk')",
            "bad disk",
        ),
        (
            "from alkstore.hookspecs import hookimpl\n@hookimpl\ndef alkstore_engine(unknown): pass",
            "unknown",
        ),
    ],
)
def test_an_engine_that_cannot_be_loaded_leaves_the_others_and_is_named_when_its_scheme_is_wanted(
    install: Install, source: str, told: str
) -> None:
    install("a-broken-engine", source=source, point="broken")
    install("ledger-engine", "ledger")

    installed = discover()

    assert choose(installed, "ledger").package == "ledger-engine"
    message = refusal(installed, "broken")
    assert "a-broken-engine" in message
    assert told in message


@pytest.mark.parametrize(
    ("scheme", "package"),
    [
        ("mem", "alkstore-mem"),
        ("sqlite", "alkstore-sqlite"),
        ("sqlite+aiosqlite", "alkstore-sqlite"),
        ("postgresql", "alkstore-pg"),
        ("postgres", "alkstore-pg"),
        ("postgresql+asyncpg", "alkstore-pg"),
    ],
)
def test_an_unknown_scheme_names_the_package_to_install(scheme: str, package: str) -> None:
    assert f"install {package}" in refusal(Installed((), ()), scheme)


def test_a_url_that_names_another_driver_is_told_to_do_without(install: Install) -> None:
    install("ledger-engine", "ledger")

    assert refusal(discover(), "ledger+aioledger").endswith("write ledger://")


def test_an_unknown_scheme_names_the_engines_that_are_installed(install: Install) -> None:
    install("ledger-engine", "ledger")

    assert "ledger" in refusal(discover(), "kafka")
