"""``alkstore-contract init``: what it writes is green at once, as far as it goes, and the ladder leads on."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hanging import HUNG

from alkstore.engine import Engine, EngineTransaction
from alkstore_contract_suite import cli

# What an editable installation leaves in an environment.
INSTALLED = """
[alkstore]
{name} = {package}.store

[alkstore.contract_engines]
{name} = {package}.contract:register
"""


def begun(folder: Path, name: str = "toy") -> Path:
    """Write the skeleton, and what makes it an installed package for a process with it on its path."""
    package = f"alkstore_{name}"
    assert cli.main(["init", name, "--out", str(folder)]) == 0
    known = folder / "src" / f"{package}-0.1.0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n", "utf-8")
    (known / "entry_points.txt").write_text(INSTALLED.format(name=name, package=package), "utf-8")
    return folder


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=HUNG,
        check=False,
    )


def methods(path: Path, class_name: str) -> set[str]:
    classes = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]
    (found,) = [node for node in classes if node.name == class_name]
    return {
        node.name
        for node in found.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    }


def public(protocol: type) -> set[str]:
    return {name for name in dir(protocol) if not name.startswith("_")}


def test_the_first_row_is_green_and_the_ladder_says_what_is_next(tmp_path: Path) -> None:
    folder = begun(tmp_path / "new")

    told = run(
        folder,
        "alkstore_contract_suite",
        "run",
        "--alk-engine",
        "toy",
        "--alk-ladder",
        "--alk-row",
        "WAKE-*,LOCK-01",
    )

    assert told.returncode == 1, told.stdout + told.stderr
    assert "next: write take_lock, for which " in told.stdout
    assert " cases green" in told.stdout
    assert "ladder: 0 of" not in told.stdout


def test_the_packages_own_tests_pass_as_they_are(tmp_path: Path) -> None:
    told = run(begun(tmp_path / "new", "key_value"), "pytest", "-p", "no:cacheprovider")

    assert told.returncode == 0, told.stdout + told.stderr
    assert "1 passed" in told.stdout


@pytest.mark.parametrize(
    ("fault", "said", "is_an_extra"),
    [
        ("import no_such_driver", "ModuleNotFoundError: No module named 'no_such_driver'", True),
        ("raise TypeError('of the author')", "TypeError: of the author", False),
    ],
)
def test_a_column_that_cannot_be_loaded_says_why(
    tmp_path: Path, fault: str, said: str, is_an_extra: bool
) -> None:
    folder = begun(tmp_path / "new")
    column = folder / "src" / "alkstore_toy" / "contract.py"
    column.write_text(f"{column.read_text('utf-8')}\n\n{fault}\n", "utf-8")

    told = run(folder, "alkstore_contract_suite", "run", "--alk-engine", "toy")

    assert told.returncode == pytest.ExitCode.USAGE_ERROR, told.stdout + told.stderr
    assert "engine 'toy' is installed and cannot be loaded" in told.stderr
    assert said in told.stderr
    assert ("often an extra of its package" in told.stderr) == is_an_extra


def test_every_method_of_the_seam_is_there_to_be_written(tmp_path: Path) -> None:
    source = begun(tmp_path / "new") / "src" / "alkstore_toy"

    assert methods(source / "engine.py", "ToyEngine") == public(Engine)
    assert methods(source / "transaction.py", "ToyTransaction") == public(EngineTransaction)


def test_names_stand_in_every_file_and_no_placeholder_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "alkstore-key-value"
    assert cli.main(["init", "key_value", "--out", str(folder)]) == 0

    texts = {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in folder.rglob("*.*")
        if path.is_file()
    }

    assert 'name = "alkstore-key-value"' in texts["pyproject.toml"]
    assert "class KeyValueStore(Store):" in texts["src/alkstore_key_value/store.py"]
    assert "python-version: ${{ matrix.python }}" in texts[".github/workflows/contract.yml"]
    assert [name for name, text in texts.items() if "$name" in text or "$package" in text] == []


def test_the_folder_is_named_after_the_engine_unless_one_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert cli.main(["init", "key_value"]) == 0

    assert (tmp_path / "alkstore-key-value" / "pyproject.toml").is_file()
    assert "  cd alkstore-key-value" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Toy", "1st", "key-value", "class", "", "../up", "a b"])
def test_a_name_that_no_engine_can_have_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["init", name, "--out", str(tmp_path / "new")]) == 2
    assert f"got {name!r}" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_nothing_that_is_there_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("mine", "utf-8")

    assert cli.main(["init", "toy", "--out", str(tmp_path)]) == 2

    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text("utf-8") == "mine"
