"""The pytest plugin. It does nothing until ``--alk-…`` or ``--pyargs alkstore_contract_suite`` asks for it.

Everything that costs an import is imported where it is wanted: this module is loaded in every pytest run of every
project that has the suite installed.
"""

import sys
from collections.abc import Sequence
from typing import Final

import pytest

PACKAGE: Final = "alkstore_contract_suite"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("alkstore contract", "the alkstore contract suite")
    _add_choices(group)
    _add_ways(group)
    _add_drawing(group)
    _add_answers(group)
    parser.addini(
        "alk_engines", "engines that tests with the fixture 'store' run on", type="args", default=[]
    )


def _add_choices(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--alk-engine",
        action="append",
        default=[],
        metavar="NAMES",
        help="only these engines' columns: mem,sqlite",
    )
    group.addoption(
        "--alk-row", action="append", default=[], metavar="IDS", help="only these rows: Q-07,Q-1*"
    )
    group.addoption("--alk-mode", action="append", default=[], metavar="MODES", help="only these modes")
    group.addoption(
        "--alk-profile",
        choices=("full", "smoke"),
        default="full",
        help="smoke: one test of each row, for a look in a few seconds (default: full)",
    )
    group.addoption(
        "--alk-allow-missing",
        action="store_true",
        help="an engine that this machine lacks something for is shown as MISSING and fails nothing",
    )


def _add_ways(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--alk-seed", type=int, metavar="N", help="shuffle the cases, and seed what is random in them"
    )
    group.addoption(
        "--alk-jobs",
        type=_count,
        metavar="N",
        help="run the cases in so many processes (default: by their number)",
    )
    group.addoption(
        "--alk-report", metavar="DIR", help="write report.json, .md and .html into this directory"
    )
    group.addoption(
        "--alk-kills", type=int, default=5, metavar="N", help="kill so many processes in the crash loop"
    )
    group.addoption(
        "--alk-ladder",
        action="store_true",
        help="climb from the simplest row on, stop at the first broken promise, say what to write next",
    )


def _add_drawing(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--alk-runs",
        type=_count,
        metavar="N",
        help="let each machine draw so many runs (default: by the column)",
    )
    group.addoption("--alk-steps", type=_count, metavar="N", help="of so many steps at most (default: 25)")
    group.addoption(
        "--alk-replay", metavar="FILE", help="do the steps of a trace that a machine left, on each engine"
    )


def _add_answers(group: pytest.OptionGroup) -> None:
    group.addoption("--alk-list", action="store_true", help="list the rows and their tests")
    group.addoption("--alk-explain", metavar="ROW", help="say everything about a row")
    group.addoption(
        "--alk-selftest",
        nargs="?",
        const="declared",
        choices=("declared", "full"),
        help="run broken engines against the rows that they break, or against all (full)",
    )
    group.addoption(
        "--alk-mutant", default="*", metavar="NAME", help="only the broken engines of this name: lock-*"
    )


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from alkstore_contract_suite import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Answer the options that run no engine's column."""
    option = config.option
    if option.alk_replay:
        from alkstore_contract_suite import replaying

        lines, code = replaying.replay(config, option.alk_replay)
        sys.stdout.write("\n".join(lines) + "\n")
        return code
    if option.alk_selftest:
        return _selftest(config)
    if not (option.alk_list or option.alk_explain):
        return None
    lines, code = _answer(option.alk_explain)
    sys.stdout.write("\n".join(lines) + "\n")
    return code


def _selftest(config: pytest.Config) -> int:
    from alkstore_contract_suite import jobs, rows, selftest

    option = config.option

    def tell(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    tested = selftest.of_the_checkout(
        rows.registered(),
        pattern=option.alk_mutant,
        seed=option.alk_seed or 0,
        is_full=option.alk_selftest == "full",
        jobs=option.alk_jobs or jobs.cores(),
        tell=tell,
    )
    if not tested.mutants:
        raise pytest.UsageError(f"no broken engine is named {option.alk_mutant!r}")
    return tested.run()


def _answer(pattern: str | None) -> tuple[Sequence[str], int]:
    from alkstore_contract_suite import catalogue, rows

    known = rows.registered()
    if pattern is None:
        return catalogue.listing(known), 0
    lines = catalogue.explain(pattern, known)
    if not lines:
        raise pytest.UsageError(f"no row fits {pattern!r}; --alk-list shows them all")
    return lines, 0


def pytest_configure(config: pytest.Config) -> None:
    from alkstore_contract_suite import fixtures

    config.pluginmanager.register(fixtures, f"{PACKAGE}.fixtures")
    if _is_asked(config):
        from alkstore_contract_suite.reporting import ContractPlugin

        config.pluginmanager.register(ContractPlugin(config), f"{PACKAGE}.contract")


def _is_asked(config: pytest.Config) -> bool:
    return bool(config.option.alk_engine) or (
        config.option.pyargs and any(arg.split("::")[0].split(".")[0] == PACKAGE for arg in config.args)
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Turn a test that wants a store into one for each engine."""
    if "alk_backend" not in metafunc.fixturenames:
        return
    from alkstore_contract_suite import fixtures

    try:
        engines = fixtures.parameters(metafunc.config)
    except pytest.UsageError as error:
        # Raised as it is, it would be shown with the whole way to it.
        raise pytest.Collector.CollectError(str(error)) from error
    metafunc.parametrize("alk_backend", engines, indirect=True)
