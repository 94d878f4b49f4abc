"""What the documentation shows of this engine is what is in it."""

import re
from importlib.resources import files
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "writing-an-engine.md"


def test_the_scripts_that_the_page_shows_are_the_engines() -> None:
    folder = files("alkstore_redis") / "lua"
    script = "\n".join(file.read_text("utf-8") for file in folder.iterdir())

    shown = re.findall(r"^```lua\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)

    assert shown
    assert [part for part in shown if part not in script] == []
