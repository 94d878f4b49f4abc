"""Run the contract on mem in many random orders and count what fails: ``python tools/soak.py --times 20``."""

import argparse
import subprocess
import sys
import time

from workspace import ROOT

__all__ = ["main", "soak"]

SUITE = ["--pyargs", "alkstore_contract_suite", "--alk-engine", "mem", "--quiet"]


def soak(times: int) -> list[int]:
    """Run the contract once a seed, 1 to ``times``, and give the seeds that failed; their output is shown."""
    failed = []
    for seed in range(1, times + 1):
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", *SUITE, f"--alk-seed={seed}"]
        run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        lines = run.stdout.strip().splitlines() or ["pytest printed nothing"]
        print(f"seed {seed:>3}  {time.monotonic() - began:5.1f} s  {lines[-1].strip('= ')}", flush=True)
        if run.returncode != 0:
            failed.append(seed)
            print(run.stdout, run.stderr, sep="\n", flush=True)
    return failed


def main(arguments: list[str]) -> int:
    """Soak, print the count, and give the exit code."""
    parser = argparse.ArgumentParser(prog="tools/soak.py", description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="how many orders (default: 20)")
    times = max(parser.parse_args(arguments).times, 1)
    failed = soak(times)
    print(f"{times - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
