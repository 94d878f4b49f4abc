"""The workflows name what they run one by one, so they must not forget what comes later."""

import re

from workspace import ROOT, engines

WORKFLOWS = ROOT / ".github" / "workflows"


def test_every_engine_has_its_place_in_the_matrix_of_the_contract() -> None:
    text = (WORKFLOWS / "contract.yml").read_text("utf-8")

    assert set(re.findall(r"--alk-engine (\w+)", text)) == set(engines())


def test_the_matrix_waits_for_every_part() -> None:
    text = (WORKFLOWS / "contract.yml").read_text("utf-8")
    jobs = re.findall(r"^  (\w+):\n    name:", text, re.MULTILINE)
    needed = re.search(r"needs: \[(.*)\]", text)

    assert needed is not None
    assert [*needed[1].split(", "), "matrix"] == jobs


def test_every_session_that_a_workflow_runs_is_there() -> None:
    told = (WORKFLOWS / "ci.yml").read_text("utf-8")
    named = re.search(r"session: \[(.*)\]", told)
    text = (ROOT / "noxfile.py").read_text("utf-8")
    sessions = {
        *re.findall(r"^def (\w+)\(session", text, re.MULTILINE),
        *re.findall(r'name="([\w-]+)"', text),
    }

    assert named is not None
    assert set(named[1].split(", ")) <= sessions
