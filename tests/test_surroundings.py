"""How reports from other people's surroundings are compared."""

import pytest

import surroundings

REPORT = {
    "engines": [
        {
            "name": "mem",
            "verdict": "CONFORMANT",
            "cells": [
                {"row": "Q-01", "mode": "plain", "status": "PASS"},
                {"row": "Q-01", "mode": "reopen", "status": "N/A"},
            ],
        }
    ]
}


def test_a_report_is_read_as_verdicts_and_cells() -> None:
    assert surroundings.statuses(REPORT) == {
        "mem": "CONFORMANT",
        "mem Q-01 plain": "PASS",
        "mem Q-01 reopen": "N/A",
    }


def test_what_differs_is_named_in_both_directions() -> None:
    first = {"mem": "CONFORMANT", "mem Q-01 plain": "PASS", "mem Q-02 plain": "PASS"}
    other = {"mem": "NOT CONFORMANT", "mem Q-01 plain": "PASS", "mem Q-03 plain": "PASS"}

    assert surroundings.differences(first, other) == [
        "mem is NOT CONFORMANT and not CONFORMANT",
        "mem Q-02 plain is not there and not PASS",
        "mem Q-03 plain is PASS and not there",
    ]
    assert surroundings.differences(first, first) == []


def test_surroundings_in_which_nothing_runs_are_red(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = surroundings.Surroundings(settings={"asyncio_mode": "auto"}, arguments=("--alk-row", "Q-99"))

    assert surroundings.main(["mem"], {"a row that does not exist": wrong}) == 1
    assert "a row that does not exist: 0 cells, exit code 4" in capsys.readouterr().out
