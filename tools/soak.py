"""Run the contract in many random orders and count what fails: ``python tools/soak.py --engine mem --times 20``.

With ``--kills 100`` the crash loop, in which processes die at random moments, is run once more with so many kills.
"""

import argparse
import subprocess
import sys
import time

from workspace import ROOT

__all__ = ["main", "soak"]

SUITE = ["--pyargs", "alkstore_contract_suite", "--quiet"]

CRASH_LOOP = ["--alk-row=Q-24", "--alk-mode=process", "--timeout=0"]
"""Only the kills, without the limit that holds for a test of ordinary length."""


def soak(times: int, engine: str = "mem", kills: int = 0) -> list[int]:
    """Run the contract once a seed, 1 to ``times``, and give the seeds that failed; their output is shown.

    With ``kills`` the seed 0 stands for the crash loop.
    """
    runs = {seed: [f"--alk-seed={seed}"] for seed in range(1, times + 1)}
    if kills:
        runs[0] = [*CRASH_LOOP, f"--alk-kills={kills}"]
    return [seed for seed, options in runs.items() if not _passes(seed, [f"--alk-engine={engine}", *options])]


def _passes(seed: int, options: list[str]) -> bool:
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", *SUITE, *options]
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    lines = run.stdout.strip().splitlines() or ["pytest printed nothing"]
    name = f"seed {seed:>3}" if seed else "kills   "
    print(f"{name}  {time.monotonic() - began:5.1f} s  {lines[-1].strip('= ')}", flush=True)
    if run.returncode != 0:
        print(run.stdout, run.stderr, sep="\n", flush=True)
    return run.returncode == 0


def main(arguments: list[str]) -> int:
    """Soak, print the count, and give the exit code."""
    parser = argparse.ArgumentParser(prog="tools/soak.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", default="mem", help="which engine (default: mem)")
    parser.add_argument("--times", type=int, default=20, help="how many orders (default: 20)")
    parser.add_argument("--kills", type=int, default=0, help="kills of one more crash loop (default: none)")
    options = parser.parse_args(arguments)
    runs = max(options.times, 1) + bool(options.kills)
    failed = soak(max(options.times, 1), options.engine, options.kills)
    print(f"{runs - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
