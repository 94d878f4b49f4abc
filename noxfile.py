"""Every task of a developer; ``nox -l`` lists them. Versions are those of the lock, through its export for pip."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "tools"))

from workspace import CONSTRAINTS, ROOT, contract, editables, group, packages, requirements

PYTHONS = [
    line.rsplit(" ", 1)[1]
    for line in nox.project.load_toml(ROOT / "packages/alkstore-core/pyproject.toml")["project"][
        "classifiers"
    ]
    if line.startswith("Programming Language :: Python :: 3.")
]
# Where tests find what several of them share: a package's may use another one's.
SHARED = nox.project.load_toml(ROOT / "pyproject.toml")["tool"]["pytest"]["ini_options"]["pythonpath"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SOAK = ["--times", "20", "--kills", "100", "--runs", "100"]

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "types", "tests", "contract", "selftest"]
# A developer may have one Python only; the continuous integration asks for each by name.
nox.options.error_on_missing_interpreters = False


def _install(session: nox.Session, *groups: str) -> None:
    """Install dependency groups and the packages, unless nox was told to use the present environment."""
    if session.venv_backend == "none":
        return
    wanted = [requirement for name in groups for requirement in group(name)]
    session.install("--constraint", str(ROOT / CONSTRAINTS), *wanted, *requirements())
    session.install("--constraint", str(ROOT / CONSTRAINTS), *editables())


@nox.session
def demo(session: nox.Session) -> None:
    """Run the main job on real input; further arguments are the demo's."""
    _install(session)
    session.run("alkstore", "demo", *session.posargs)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the unit tests and the documentation's code on every Python of this machine."""
    _install(session, "test")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(name="contract")
def contract_once(session: nox.Session) -> None:
    """Run the contract on every engine, or ``nox -s contract -- --alk-engine mem --alk-row Q-07``."""
    _install(session, "test")
    is_narrowed = any(argument.startswith("--alk-engine") for argument in session.posargs)
    suite = ["--pyargs", "alkstore_contract_suite"] if is_narrowed else contract()
    session.run("python", "-m", "pytest", *suite, *session.posargs)


@nox.session
def selftest(session: nox.Session) -> None:
    """Plant every fault of the checkout, and see its row find it."""
    _install(session, "test")
    session.run("python", "-m", "pytest", "--alk-selftest", *session.posargs)


@nox.session(name="contract-soak")
def contract_soak(session: nox.Session) -> None:
    """Run the contract again and again, each time in another order, let machines draw, kill many processes, and see
    every planted fault on every row; arguments are those of ``tools/soak.py``, and then it runs alone.
    """
    _install(session, "test")
    session.run("python", "tools/soak.py", *(session.posargs or SOAK))
    if not session.posargs:
        session.run("python", "-m", "pytest", "--alk-selftest=full")


@nox.session
def mutation(session: nox.Session) -> None:
    """Plant small faults in mem and in core's decisions, and list those that no test finds; see docs/mutation.md."""
    _install(session, "test", "mutation")
    session.run("python", "tools/mutation.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Set alkstore beside the bare drivers and its peers, and print docs/performance.md anew; about five minutes an
    engine on a machine that does nothing else: ``nox -s bench -- --engine sqlite --peer huey --quick``.
    """
    _install(session, "test", "bench")
    session.run("python", "benchmarks/bench.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check form, imports and the workspace."""
    _install(session, "lint")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("lint-imports")
    session.run("python", "tools/check_workspace.py")


@nox.session
def types(session: nox.Session) -> None:
    """Check types: one run a package, since two tests folders may hold files of one name."""
    _install(session, "types")
    for package in packages():
        tests = package.folder / "tests"
        paths = [package.folder / "src", *([tests] if tests.is_dir() else [])]
        session.run("mypy", *map(str, paths), env={"MYPYPATH": os.pathsep.join([str(tests), *SHARED])})
    shared = os.pathsep.join(SHARED)
    session.run("mypy", "noxfile.py", "tools", "tests", "docs/conf.py", env={"MYPYPATH": shared})
    session.run("mypy", "benchmarks")
    with tempfile.TemporaryDirectory() as folder:
        # What authors begin with: its signatures are to be those of the seam.
        begun = Path(folder) / "begun"
        session.run("alkstore-contract", "init", "toy_kv", "--out", str(begun), silent=True)
        with session.chdir(begun):
            session.run("mypy", "src", "tests", "noxfile.py", env={"MYPYPATH": ""})
    session.run("basedpyright")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build all wheels, install them together where nothing else is, and work from them outside the checkout."""
    _install_wheels(session)
    with tempfile.TemporaryDirectory() as elsewhere, session.chdir(elsewhere):
        session.run("alkstore", "demo")
        session.run("python", "-P", "-m", "pytest", "-p", "no:cacheprovider", *contract())


@nox.session
def surroundings(session: nox.Session) -> None:
    """Run the suite from its wheel beside other people's settings of pytest; arguments are engines, mem and sqlite by default."""
    _install_wheels(session)
    session.install("--constraint", str(ROOT / CONSTRAINTS), *group("surroundings"))
    session.run(
        "python", "-P", str(ROOT / "tools" / "surroundings.py"), *(session.posargs or ["mem", "sqlite"])
    )


def _install_wheels(session: nox.Session) -> None:
    if session.venv_backend == "none":
        session.error("the wheels must be installed in an environment of their own: leave --no-venv out")
    folder = Path(session.create_tmp()) / "wheels"
    for old in folder.glob("*"):
        old.unlink()
    session.install("--constraint", str(ROOT / CONSTRAINTS), *group("build"))
    for package in packages():
        # By way of the source distribution: a file that it lacks is missing from the wheel too, and shows.
        session.run(
            "python",
            "-m",
            "build",
            "--no-isolation",
            "--outdir",
            str(folder),
            str(package.folder),
            silent=True,
        )
    # By their paths: uv finds one of the same name and version in its cache, which is what was built some time before.
    wanted = [
        f"{package.name}[{','.join(package.extras)}] @ {_wheel(folder, package.name)}"
        for package in packages()
    ]
    session.install("--constraint", str(ROOT / CONSTRAINTS), *wanted)


def _wheel(folder: Path, name: str) -> str:
    (found,) = folder.resolve().glob(f"{name.replace('-', '_')}-*.whl")
    return found.as_uri()


@nox.session
def wasm(session: nox.Session) -> None:
    """Run the contract on the mem engine within Pyodide, which is Python on WebAssembly; Node.js and npm must be there."""
    if session.venv_backend != "none":
        session.install("--constraint", str(ROOT / CONSTRAINTS), *group("build"), "pip")
    session.run("python", "tools/wasm.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, every warning an error, and execute its code."""
    _install(session, "test", "docs")
    session.run("sphinx-build", "-n", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")
    session.run("python", "-m", "pytest", "tests/test_docs.py")


@nox.session
def pages(session: nox.Session) -> None:
    """Look at the page of a report, and at the dashboard, in the Chromium of this machine; ``nox -s pages -- FOLDER`` keeps
    pictures.
    """
    _install(session, "test", "pages")
    if not any(map(shutil.which, BROWSERS)):
        session.skip(f"no browser is here: none of {', '.join(BROWSERS)}")
    kept = {"ALKSTORE_PAGES": str(Path(session.posargs[0]).resolve())} if session.posargs else {}
    session.run("python", "-m", "pytest", "tests/test_pages.py", "tests/test_dashboard.py", env=kept)


@nox.session(venv_backend="none")
def lock(session: nox.Session) -> None:
    """Lock again with uv, and write the export for machines that have only pip."""
    session.run("uv", "lock", external=True)
    arguments = ["--all-packages", "--all-groups", "--no-emit-workspace"]
    quiet = ["--quiet", "--no-hashes", "--no-header", "--no-annotate", "--output-file", str(CONSTRAINTS)]
    session.run("uv", "export", *arguments, *quiet, external=True, silent=True)
