from pathlib import Path

import pytest

import bump
import check_workspace


def test_a_bump_moves_every_version_and_every_pin(workspace: Path) -> None:
    mem = workspace / "packages/a-mem/pyproject.toml"
    mem.write_text(
        mem.read_text("utf-8") + 'optional-dependencies.all = ["a-core[cli,x]==1.2.3", "rich==1.2.3"]\n',
        "utf-8",
    )

    code = workspace / "packages/a-mem/src/a_mem/__init__.py"
    code.write_text('__version__: Final = "1.2.3"\n', "utf-8")

    changed = bump.bump("2.0.0rc1", workspace)

    assert changed == [workspace / "packages/a-core/pyproject.toml", mem, code]
    assert code.read_text("utf-8") == '__version__: Final = "2.0.0rc1"\n'
    assert 'version = "2.0.0rc1"' in mem.read_text("utf-8")
    assert '["a-core==2.0.0rc1"]' in mem.read_text("utf-8")
    assert '["a-core[cli,x]==2.0.0rc1", "rich==1.2.3"]' in mem.read_text("utf-8")
    assert list(check_workspace.versions(workspace)) == []


def test_a_second_bump_to_the_same_version_changes_nothing(workspace: Path) -> None:
    bump.bump("1.3.0", workspace)

    assert bump.bump("1.3.0", workspace) == []


@pytest.mark.parametrize("version", ["", "1", "1.2", "v1.2.3", "1.2.3\n", "1.2.3.4", "latest"])
def test_a_version_of_another_form_is_refused_and_nothing_is_written(workspace: Path, version: str) -> None:
    with pytest.raises(ValueError, match="version must be like"):
        bump.bump(version, workspace)

    assert list(check_workspace.versions(workspace)) == []


def test_the_command_says_what_it_wants(capsys: pytest.CaptureFixture[str]) -> None:
    assert bump.main([]) == 2
    assert bump.main(["one"]) == 2
    assert "usage" in capsys.readouterr().err
