"""Plant small faults in mem and in core's decisions, and say which of them no test finds: ``python tools/mutation.py``.

Cosmic Ray makes the faults, in memory. The tests and mem's column are collected once, and run once to learn which of
them reach which function. Then every fault gets a fork of this process, in which the function's code is exchanged, and
what reaches the function is run until something fails. No file is changed, and a fault costs what its tests cost.
"""

import argparse
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from mutation_faults import Fault, faults
from mutation_run import Run
from mutation_survivors import FILE, PAGE, Known, page, read, unreasoned
from workspace import ROOT

__all__ = ["main"]

MEM = "packages/alkstore-mem/src/alkstore_mem"
CORE = "packages/alkstore-core/src/alkstore"
NOT_DECISIONS = {"contract", "contract_joins", "__init__"}
DECISIONS = {
    *{"backoff", "batching", "claiming", "draft", "interval", "json_value", "life", "lock", "migrations"},
    *{"names", "numbers", "outbox", "pausing", "payload", "queue", "renewal", "schedule", "stamps"},
    *{"statements", "stop", "stream", "transaction", "tx_life", "values", "wake", "watch"},
}
"""Core's modules that decide something; the others say, load or print."""

TESTS = [
    "packages/alkstore-core/tests",
    "packages/alkstore-mem/tests",
    *("--ignore-glob=*/test_cli*", "--ignore-glob=*/test_demo*", "--ignore-glob=*/test_io_columns.py"),
    *("--ignore-glob=*/test_sync_processes.py", "--ignore-glob=*/test_plugins.py"),
    *("--pyargs", "alkstore_contract_suite"),
]
"""What starts processes is left out: they would import the honest code."""

OPTIONS = ["--quiet", "--alk-jobs=1", "-p", "no:randomly", "-p", "no:cacheprovider", "-s"]


def _modules(pattern: str) -> Iterator[Path]:
    """Give the modules whose package and name fit, as ``alkstore_mem.queue``."""
    mem = [path for path in (ROOT / MEM).glob("*.py") if path.stem not in NOT_DECISIONS]
    for path in sorted([*mem, *(ROOT / CORE / f"{name}.py" for name in DECISIONS)]):
        if re.fullmatch(pattern, f"{path.parent.name}.{path.stem}"):
            yield path


def _sample(paths: Iterable[Path], most: int, seed: int) -> list[Fault]:
    # A module's sample does not depend on which others are looked at.
    chosen = [fault for path in paths for fault in islice(faults(path, Random(f"{seed} {path.stem}")), most)]
    Random(seed).shuffle(chosen)  # a run that is ended early has looked everywhere
    return chosen


def _table(results: Sequence[tuple[Fault, str]]) -> Iterator[str]:
    yield "| module | faults | found | not reached | survivors |"
    yield "| --- | --- | --- | --- | --- |"
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for fault, result in results:
        module = ".".join(map(str, fault.described[:2]))
        counts[module][result if result in {"survived", "unreached"} else "found"] += 1
    for module, count in sorted(counts.items()):
        yield f"| {module} | {count.total()} | {count['found']} | {count['unreached']} | {count['survived']} |"


def _survivors(results: Sequence[tuple[Fault, str]]) -> Iterator[str]:
    for fault, result in results:
        if result in {"survived", "unreached"}:
            package, module, line, kind, change = fault.described
            yield f"{package}.{module}:{line} {kind}: {result}\n{change}"


def _told(results: Sequence[tuple[Fault, str]], known: Known) -> tuple[Sequence[str], int]:
    """Give what to print of new survivors, and the exit code: 1 if one is of a module that has been looked at."""
    alive = [fault for fault, result in results if result in {"survived", "unreached"}]
    new = list(unreasoned(alive, known))
    watched = [entry for entry in new if any(f"module = '{module}'" in entry for module in known.modules)]
    head = [f"{len(new)} survivors without a reason; complete them and add them to {FILE.name}:", ""]
    return [*head, "\n\n".join(new)] if new else [], 1 if watched else 0


def main(arguments: list[str]) -> int:
    """Plant the faults, print a table and the survivors, and give the exit code: 1 for new survivors where all were known,
    and if the tests did not run at all.
    """
    parser = argparse.ArgumentParser(prog="mutation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--module", default=".*", metavar="PATTERN", help="as alkstore_mem.queue (default: all)"
    )
    parser.add_argument("--line", type=int, help="only faults in this line")
    parser.add_argument("--most", type=int, default=10**6, help="faults of a module (default: all of them)")
    parser.add_argument("--seed", type=int, default=0, help="which ones, if not all (default: 0)")
    parser.add_argument(
        "--out", type=Path, default=Path("mutation.jsonl"), help="where a line a fault is added"
    )
    parser.add_argument("--engine", action="append", default=["mem"], help="look at this column too")
    parser.add_argument(
        "--page", action="store_true", help=f"plant nothing: write {PAGE.name} from {FILE.name}"
    )
    options = parser.parse_args(arguments)
    known = read(FILE.read_text("utf-8"))
    if options.page:
        PAGE.write_text(page(known), "utf-8")
        return 0
    chosen = _sample(_modules(options.module), options.most, options.seed)
    run = Run([fault for fault in chosen if options.line in {None, fault.line}], options.out)
    os.chdir(ROOT)
    columns = [f"--alk-engine={name}" for name in options.engine]
    pytest.main([*OPTIONS, *TESTS, *columns], plugins=[run])
    told, code = _told(run.results, known)
    print("\n".join([*_table(run.results), "", *_survivors(run.results), "", *told]))
    return code if run.results else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
