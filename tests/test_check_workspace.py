import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import check_workspace
from workspace import ROOT


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_a_sound_workspace_has_no_problems(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = check_workspace.main(repository)

    assert (code, capsys.readouterr().out) == (0, "workspace: 8 checks passed\n")


def test_a_problem_is_printed_and_makes_the_exit_code(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "packages/a-mem/src/a_mem/py.typed").unlink()

    code = check_workspace.main(repository)

    assert (code, capsys.readouterr().out) == (1, "layout: a-mem: a_mem/py.typed is missing\n")


def test_this_workspace_passes(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        subprocess.run(["git", "rev-parse"], cwd=ROOT, check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("this copy is not under git")

    code = check_workspace.main()

    assert code == 0, capsys.readouterr().out


def own_version(root: Path) -> None:
    replace(root / "packages/a-mem/pyproject.toml", 'version = "1.2.3"', 'version = "1.2.4"')


def own_version_in_code(root: Path) -> None:
    (root / "packages/a-mem/src/a_mem/version.py").write_text('__version__: Final = "1.2.2"\n', "utf-8")


def loose_pin(root: Path) -> None:
    replace(root / "packages/a-mem/pyproject.toml", "a-core==1.2.3", "a-core>=1.2.3")


def stale_pin(root: Path) -> None:
    replace(root / "packages/a-mem/pyproject.toml", "a-core==1.2.3", "a-core[cli]==1.2.2")


def own_range(root: Path) -> None:
    replace(root / "packages/a-mem/pyproject.toml", ">=3.11", ">=3.12")


def linked_licence(root: Path) -> None:
    (root / "packages/a-mem/LICENSE").unlink()
    (root / "packages/a-mem/LICENSE").symlink_to(root / "LICENSE")


def other_licence(root: Path) -> None:
    replace(root / "packages/a-mem/LICENSE", "free", "not free")


def package_of_tests(root: Path) -> None:
    (root / "packages/a-mem/tests").mkdir()
    (root / "packages/a-mem/tests/__init__.py").touch()


def other_contract(root: Path) -> None:
    (root / "packages/a-mem/src/a_mem/contract.md").write_text("# Another contract\n", "utf-8")


def stale_constraint(root: Path) -> None:
    replace(root / "requirements/constraints.txt", "0.20", "0.19")


@pytest.mark.parametrize(
    ("damage", "check", "problems"),
    [
        (own_version, check_workspace.versions, ["a-mem: version 1.2.4, a-core has 1.2.3"]),
        (own_version_in_code, check_workspace.versions, ["a-mem: version 1.2.2, a-core has 1.2.3"]),
        (loose_pin, check_workspace.versions, ["a-mem: requires 'a-core>=1.2.3', must be 'a-core==1.2.3'"]),
        (
            stale_pin,
            check_workspace.versions,
            ["a-mem: requires 'a-core[cli]==1.2.2', must be 'a-core==1.2.3'"],
        ),
        (
            own_range,
            check_workspace.python_range,
            ["a-mem: requires-python must be '>=3.11', as in the root"],
        ),
        (linked_licence, check_workspace.licences, ["a-mem: LICENSE must be a copy of the root's"]),
        (other_licence, check_workspace.licences, ["a-mem: LICENSE must be a copy of the root's"]),
        (
            package_of_tests,
            check_workspace.layout,
            [
                "packages/a-mem/tests/__init__.py: a tests folder must be no package, or same-named files clash"
            ],
        ),
        (
            other_contract,
            check_workspace.contract_copies,
            ["packages/a-mem/src/a_mem/contract.md: differs from docs/contract.md; copy that one here"],
        ),
        (
            stale_constraint,
            check_workspace.constraints,
            [
                "msgspec==0.19 is only in requirements/constraints.txt; run `nox -s lock`",
                "msgspec==0.20 is only in uv.lock; run `nox -s lock`",
            ],
        ),
    ],
)
def test_each_damage_is_named(
    workspace: Path, damage: Callable[[Path], None], check: Callable[[Path], object], problems: list[str]
) -> None:
    damage(workspace)

    assert list(check(workspace)) == problems  # type: ignore[call-overload]  # every check gives strings


def test_a_long_function_and_a_long_file_are_named(repository: Path) -> None:
    body = "    pass\n" * check_workspace.LONGEST_FUNCTION
    (repository / "long.py").write_text(
        f"def long():\n{body}" + "#\n" * check_workspace.LONGEST_FILE, "utf-8"
    )

    assert list(check_workspace.sizes(repository)) == [
        "long.py: 451 lines, at most 400",
        "long.py:1: long has 51 lines, at most 50",
    ]


def test_functions_over_the_wanted_length_are_counted(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "long.py").write_text("def long():\n" + "    pass\n" * 30 + "def short(): ...\n", "utf-8")

    check_workspace.report(repository)

    assert capsys.readouterr().out == "functions over 30 lines: 1\n  31 long.py:1: long\n"


@pytest.mark.parametrize(
    "text",
    [
        "see /" + "home/ada/notes",
        "cd /" + "root/x",
        "file:" + "///mirror",
        "pip --extra-index" + "-url x",
        "# TO" + "DO later",
    ],
)
def test_a_leak_is_named_with_its_line(repository: Path, text: str) -> None:
    (repository / "page.md").write_text(f"\n{text}\n", "utf-8")

    (problem,) = check_workspace.leaks(repository)

    assert problem.startswith("page.md:2: ")


def test_ignored_files_are_nobodys_business(repository: Path) -> None:
    (repository / ".gitignore").write_text("mine/\n", "utf-8")
    (repository / "mine").mkdir()
    (repository / "mine/page.md").write_text("/" + "home/ada\n", "utf-8")

    assert list(check_workspace.leaks(repository)) == []
