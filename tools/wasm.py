"""The contract on the mem engine in WebAssembly: ``python tools/wasm.py``, further arguments are pytest's.

Pyodide comes from npm and runs under Node.js; what is installed in it comes from the package index at the lock's
versions, and from this checkout as wheels. The exit code is 0 if the engine is CONFORMANT and the application's
tests passed, 1 if not, 2 if something is missing that the run needs.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from workspace import CONSTRAINTS, ROOT, packages

__all__ = ["Missing", "main"]

PYODIDE: Final = "314.0.7"
"""The version of the npm package; it decides on Python's, and so on the wheels that fit."""

FOLDER: Final = ROOT / ".dev" / "wasm"
INSIDE: Final = Path(__file__).resolve().parent / "pyodide"
PARTS: Final = ("alkstore-core", "alkstore-mem", "alkstore-contract-suite")
BESIDE: Final = ("tzdata",)
"""What other platforms have of their own: Pyodide has no database of time zones."""

SUITE: Final = ("--pyargs", "alkstore_contract_suite", "--alk-engine", "mem", "/inside/test_application.py")
MISSING: Final = 2
INSTALL_LIMIT: Final = 300.0
RUN_LIMIT: Final = 600.0
"""Seconds; a run takes about 10, and one that hangs must not hold up whoever waits for it."""


class Missing(Exception):
    """Something that the run needs is not to be had here; the text says what."""


def main(arguments: Sequence[str]) -> int:
    """Install what is needed, run, and give the exit code."""
    try:
        node = program("node")
        pyodide = runtime(program("npm"))
        site = installed(pyodide)
        command = [node, str(INSIDE / "main.mjs"), str(pyodide), str(site), str(Path.cwd())]
        ended = subprocess.run([*command, *SUITE, *arguments], timeout=RUN_LIMIT, check=False)
    except Missing as missing:
        print(f"wasm: not run — {missing}", file=sys.stderr)
        return MISSING
    except subprocess.TimeoutExpired as late:
        print(f"wasm: {late.cmd[0]} did not end within {late.timeout:g} s", file=sys.stderr)
        return 1
    return 1 if ended.returncode else 0


def program(name: str) -> str:
    """Give the path of a program.

    Raises:
        Missing: It is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is missing: install Node.js 18 or newer, with npm")
    return found


def runtime(npm: str) -> Path:
    """Give the folder of Pyodide, installed there unless it is already."""
    folder = FOLDER / f"pyodide-{PYODIDE}"
    pyodide = folder / "node_modules" / "pyodide"
    if not (pyodide / "pyodide.asm.wasm").exists():
        folder.mkdir(parents=True, exist_ok=True)
        what = f"pyodide@{PYODIDE}"
        quiet = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        call(what, [npm, "install", "--prefix", str(folder), *quiet, what])
    return pyodide


def installed(pyodide: Path) -> Path:
    """Give a folder with everything that is imported, unpacked for the Python that Pyodide is."""
    info = json.loads((pyodide / "pyodide-lock.json").read_text("utf-8"))["info"]
    major, minor, _ = info["python"].split(".")
    target = ["--python-version", f"{major}.{minor}", "--implementation", "cp", "--abi", f"cp{major}{minor}"]
    target += ["--platform", f"pyemscripten_{info['abi_version']}_{info['arch']}", "--only-binary", ":all:"]
    wheels, site = fresh("wheels"), fresh("site")
    known = {package.name: package for package in packages()}
    for name in PARTS:
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels)]
        call(f"a wheel of {name}", [*build, str(known[name].folder)])
    wanted = [f"{name}=={known[name].version}" for name in PARTS]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(site)]
    sources = ["--constraint", str(ROOT / CONSTRAINTS), "--find-links", str(wheels)]
    call("wheels for Pyodide", [*pip, *target, *sources, *wanted, *BESIDE])
    return site


def fresh(name: str) -> Path:
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def call(what: str, command: Sequence[str]) -> None:
    """Run an installer quietly.

    Raises:
        Missing: It failed; its last words are in the text.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise Missing(f"{what} could not be had from {Path(command[0]).name}: {said}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
