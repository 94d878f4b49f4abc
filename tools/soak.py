"""Run the contract in many random orders and count what fails: ``python tools/soak.py --engine mem --times 20``.

With ``--runs 100`` the machines draw so many runs each, of 60 steps at most and of a seed that is new each time, which is
printed; what they find is a trace that ``--alk-replay`` runs. With ``--kills 100`` the crash loop, in which processes die at random moments, is run once more with so many kills, on
every engine that several processes may share. With ``--minutes 3`` no further order is begun on an engine after that.
"""

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from alkstore_contract_suite.factory import Missing, Planned, Unsupported
from alkstore_contract_suite.registry import Registry, load_entry_points
from workspace import ROOT, contract, engines

__all__ = ["Soak", "main"]

MACHINES = ["--alk-row=MODEL-*", "--alk-steps=60", "--timeout=0"]
"""Only the machines, longer than in a column; how long they may take they know themselves."""

CRASH_LOOP = ["--alk-row=Q-24", "--alk-mode=process", "--timeout=0"]
"""Only the kills, without the limit that holds for a test of ordinary length."""


@dataclass(frozen=True, slots=True)
class Soak:
    """How long an engine is soaked.

    Attributes:
        times: Orders, of the seeds from 1 on.
        minutes: After these no order is begun; the first always is.
        kills: Processes killed in one more crash loop, which comes first.
        runs: Runs that each machine draws, after that.
    """

    times: int
    minutes: float
    kills: int
    runs: int

    def run(self, engine: str) -> bool:
        """Run the contract on an engine, print a line a run and their count; gives whether all were good."""
        runs = list(self._runs(engine))
        print(f"{engine}: {sum(runs)} passed, {len(runs) - sum(runs)} failed", flush=True)
        return all(runs)

    def _runs(self, engine: str) -> Iterator[bool]:
        if self.kills and _has_processes(engine):
            yield _passes(engine, f"{self.kills} kills", [*CRASH_LOOP, f"--alk-kills={self.kills}"])
        if self.runs:
            seed = random.randrange(2**31)
            options = [*MACHINES, f"--alk-runs={self.runs}", f"--alk-seed={seed}"]
            yield _passes(engine, f"{self.runs} runs of seed {seed}", options)
        end = time.monotonic() + 60 * self.minutes
        for seed in range(1, self.times + 1):
            if seed > 1 and time.monotonic() > end:
                return
            yield _passes(engine, f"seed {seed}", [f"--alk-seed={seed}"])


def _has_processes(engine: str) -> bool:
    registry = Registry()
    load_entry_points(registry)
    column = registry.columns[engine]
    absent = isinstance(column.capabilities["multi_process"], Planned | Unsupported)
    return not absent and not isinstance(column.available(), Missing)


def _passes(engine: str, name: str, options: list[str]) -> bool:
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "--quiet", *contract(engine), *options]
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    lines = run.stdout.strip().splitlines() or ["pytest printed nothing"]
    print(f"{engine:<8} {name:<9} {time.monotonic() - began:6.1f} s  {lines[-1].strip('= ')}", flush=True)
    if run.returncode != 0:
        print(run.stdout, run.stderr, sep="\n", flush=True)
    return run.returncode == 0


def main(arguments: list[str]) -> int:
    """Soak, print the counts, and give the exit code."""
    parser = argparse.ArgumentParser(prog="soak", description=(__doc__ or "").splitlines()[0])
    known = engines()
    parser.add_argument("--engine", action="append", choices=known, help="which one (default: all of them)")
    parser.add_argument("--times", type=int, default=20, help="how many orders (default: 20)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="the most (default: no limit)")
    parser.add_argument("--kills", type=int, default=0, help="kills of one more crash loop (default: none)")
    parser.add_argument(
        "--runs", type=int, default=0, help="runs of each machine (default: none but the column's)"
    )
    options = parser.parse_args(arguments)
    soak = Soak(max(options.times, 1), options.minutes, options.kills, options.runs)
    good = [soak.run(engine) for engine in options.engine or known]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
