"""Which columns a pytest run works with."""

from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from alkstore_contract_suite.backends import Backends
from alkstore_contract_suite.factory import EngineColumn, Missing
from alkstore_contract_suite.registry import ColumnError, Registry, check_core, load_entry_points

__all__ = ["backends", "chosen", "of_applications"]

REGISTRY: Final = pytest.StashKey[tuple[Mapping[str, EngineColumn], Mapping[str, str]]]()
BACKENDS: Final = pytest.StashKey[Backends]()


def chosen(config: pytest.Config) -> Sequence[EngineColumn]:
    """Give the columns named by ``--alk-engine``, a comma or another option between two, or every registered one.

    Raises:
        pytest.UsageError: A named one is unknown or cannot run here, none is registered, or one cannot be loaded.
    """
    return _named(config, config.option.alk_engine)


def of_applications(config: pytest.Config) -> Sequence[EngineColumn]:
    """Give the columns that an application's own tests run on: those of the command line, those of the setting
    ``alk_engines``, or every registered one.

    Raises:
        pytest.UsageError: As `chosen`.
    """
    return _named(config, config.option.alk_engine or config.getini("alk_engines"))


def _named(config: pytest.Config, wanted: Sequence[str]) -> Sequence[EngineColumn]:
    columns, broken = _registered(config)
    names = list(dict.fromkeys(name for words in wanted for name in words.split(",")))
    if broken and not names:
        raise pytest.UsageError(f"{'; '.join(broken.values())}; name the engines to run with --alk-engine")
    for name in names:
        _check(name, columns, broken, may_be_missing=config.option.alk_allow_missing)
    if not columns:
        raise pytest.UsageError("no engine is registered; install one, or register its column in conftest.py")
    return [columns[name] for name in names or columns]


def backends(config: pytest.Config) -> Backends:
    """Give the run's backends; they are stopped when the run ends."""
    if BACKENDS not in config.stash:
        worker = getattr(config, "workerinput", {}).get("workerid", "main")
        config.stash[BACKENDS] = Backends(worker)
        config.add_cleanup(config.stash[BACKENDS].close)
    return config.stash[BACKENDS]


def _check(
    name: str, columns: Mapping[str, EngineColumn], broken: Mapping[str, str], *, may_be_missing: bool
) -> None:
    if name in broken:
        raise pytest.UsageError(f"engine {name!r} is installed and cannot be loaded: {broken[name]}")
    if name not in columns:
        known = ", ".join(columns) or "none"
        failed = f"; failed: {', '.join(broken)}" if broken else ""
        raise pytest.UsageError(
            f"no engine {name!r} is registered (registered: {known}{failed}); install its package, or register its column "
            "in conftest.py with pytest_alkstore_register(registry)"
        )
    found = columns[name].available()
    if isinstance(found, Missing) and not may_be_missing:
        raise pytest.UsageError(f"engine {name!r} cannot run here: {found.advice}")


def _registered(config: pytest.Config) -> tuple[Mapping[str, EngineColumn], Mapping[str, str]]:
    if REGISTRY not in config.stash:
        registry = Registry()
        try:
            check_core()
            broken = load_entry_points(registry)
            config.hook.pytest_alkstore_register(registry=registry)
        except ColumnError as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[REGISTRY] = registry.columns, broken
    return config.stash[REGISTRY]
