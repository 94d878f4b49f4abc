import ast
import json
from pathlib import Path

import pytest

import devenv
import devtasks
import workspace as workspace_files

TOOLS = Path(devenv.__file__).parent


def test_the_command_can_be_read_by_a_python_that_it_refuses() -> None:
    source = (TOOLS / "dev.py").read_text("utf-8")

    tree = ast.parse(source, feature_version=(3, 5))

    imports = [node.lineno for node in tree.body if isinstance(node, ast.ImportFrom)]
    refusal = next(node.lineno for node in tree.body if isinstance(node, ast.If))
    assert refusal < min(imports)


def test_groups_are_expanded_once_and_in_order(workspace: Path) -> None:
    (workspace / "pyproject.toml").write_text(
        '[dependency-groups]\ntest = ["pytest", "rich"]\ndev = [{ include-group = "test" }, "rich", "nox"]\n',
        "utf-8",
    )

    assert workspace_files.group("dev", workspace) == ["pytest", "rich", "nox"]


def test_packages_are_installed_from_their_folders_after_what_all_their_extras_need(workspace: Path) -> None:
    mem = workspace / "packages/a-mem/pyproject.toml"
    mem.write_text(
        mem.read_text("utf-8") + 'optional-dependencies.x = ["rich[a]>=2", "a-core[cli]==1.2.3"]\n', "utf-8"
    )

    assert workspace_files.requirements(workspace) == ["msgspec>=0.20", "rich[a]>=2"]
    assert workspace_files.editables(workspace) == [
        "--no-deps",
        "-e",
        str(workspace / "packages/a-core"),
        "-e",
        str(workspace / "packages/a-mem"),
    ]


def test_the_engines_are_those_whose_columns_the_packages_register(workspace: Path) -> None:
    mem = workspace / "packages/a-mem/pyproject.toml"
    column = '[project.entry-points."alkstore.contract_engines"]\nmem = "a_mem.contract:register"\n'
    mem.write_text(mem.read_text("utf-8") + column, "utf-8")

    assert workspace_files.engines(workspace) == ["mem"]


def test_the_suite_is_asked_for_each_engine_by_name() -> None:
    named = [argument for argument in workspace_files.contract() if argument in workspace_files.engines()]

    assert named == workspace_files.engines()
    assert set(named) >= {"mem", "sqlite"}
    assert workspace_files.contract("mem")[-2:] == ["--alk-engine", "mem"]


def test_another_pythons_packages_are_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("PYTHONHOME", "elsewhere")
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("LANG", "C.UTF-8")

    environ = devenv.environ()

    assert not {"PYTHONPATH", "PYTHONHOME"} & environ.keys()
    assert (environ["PIP_USER"], environ["LANG"]) == ("0", "C.UTF-8")


@pytest.mark.parametrize(
    "changed", ["pyproject.toml", "requirements/constraints.txt", "packages/a-mem/pyproject.toml"]
)
def test_the_environment_is_out_of_date_once_a_file_it_was_made_from_changed(
    workspace: Path, changed: str
) -> None:
    before = devenv.fingerprint(workspace)
    assert devenv.fingerprint(workspace) == before

    with (workspace / changed).open("a", encoding="utf-8") as file:
        file.write("\n")

    assert devenv.fingerprint(workspace) != before


@pytest.mark.parametrize(
    ("code", "counts", "outcome"),
    [
        (0, 'tests="9" failures="0" errors="0" skipped="1"', (True, "8 unit tests passed")),
        (
            1,
            'tests="9" failures="2" errors="1" skipped="0"',
            (False, "3 of 9 unit tests failed (pytest ended with code 1)"),
        ),
        (
            0,
            'tests="1" failures="0" errors="0" skipped="1"',
            (False, "0 of 0 unit tests failed (pytest ended with code 0)"),
        ),
        (
            3,
            'tests="9" failures="0" errors="0" skipped="0"',
            (False, "0 of 9 unit tests failed (pytest ended with code 3)"),
        ),
    ],
)
def test_unit_tests_are_judged_by_code_and_counted_by_report(
    tmp_path: Path, code: int, counts: str, outcome: tuple[bool, str]
) -> None:
    report = tmp_path / "unit.xml"
    report.write_text(f"<testsuites><testsuite {counts}/></testsuites>", "utf-8")

    judged = devtasks.judge_unit(code, report)

    assert (judged.is_green, judged.text) == outcome


@pytest.mark.parametrize(
    ("code", "verdicts", "outcome"),
    [
        (0, {"mem": "CONFORMANT"}, (True, "contract CONFORMANT on mem")),
        (1, {"mem": "NOT CONFORMANT"}, (False, "contract NOT CONFORMANT on mem")),
        (0, {"mem": "INCOMPLETE"}, (False, "contract INCOMPLETE on mem")),
        (1, {"mem": "CONFORMANT"}, (False, "contract CONFORMANT on mem, but pytest ended with code 1")),
        (0, {}, (False, "the contract ran on no engine")),
        (
            0,
            {"mem": "CONFORMANT", "far": "MISSING"},
            (True, "contract CONFORMANT on mem, contract MISSING on far"),
        ),
        (0, {"far": "MISSING"}, (False, "contract MISSING on far")),
    ],
)
def test_the_contract_is_judged_by_verdict_and_code(
    tmp_path: Path, code: int, verdicts: dict[str, str], outcome: tuple[bool, str]
) -> None:
    report = tmp_path / "report.json"
    engines = [{"name": name, "verdict": verdict} for name, verdict in verdicts.items()]
    report.write_text(json.dumps({"engines": engines}), "utf-8")

    judged = devtasks.judge_contract(code, report)

    assert (judged.is_green, judged.text) == outcome


def test_what_failed_is_named_with_the_end_of_what_was_told(tmp_path: Path) -> None:
    report = tmp_path / "unit.xml"
    failed = '<testcase classname="tests.test_a" name="test_b"><failure message="short">first\nlast</failure></testcase>'
    broken = '<testcase classname="tests.test_a" name="test_c"><error message="no fixture"/></testcase>'
    counts = 'tests="3" failures="1" errors="1" skipped="0"'
    report.write_text(
        f"<testsuites><testsuite {counts}><testcase name='good'/>{failed}{broken}</testsuite></testsuites>",
        "utf-8",
    )

    judged = devtasks.judge_unit(1, report)

    assert judged.details.splitlines() == [
        "failure: tests.test_a::test_b",
        "first",
        "last",
        "error: tests.test_a::test_c",
        "no fixture",
    ]


def test_a_run_without_a_report_is_red(tmp_path: Path) -> None:
    absent = tmp_path / "absent"

    assert not devtasks.judge_unit(0, absent).is_green
    assert not devtasks.judge_contract(0, absent).is_green
