import subprocess
import sys


def test_the_engine_is_imported_without_sqlalchemy() -> None:
    code = "import sys, alkstore_sqlite; print('sqlalchemy' in sys.modules)"

    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert run.stdout == "False\n"
