"""What a forked child does to its parent's file: nothing. Each case is a program of its own, for pytest has threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hanging import HUNG

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this platform")

COMMON = """
import os, sqlite3, sys
from alkstore_sqlite.connection import Connection
from alkstore_sqlite.place import Place
from alkstore_sqlite.errors import FileReplaced
from alkstore_sqlite.surroundings import check_place, connect_arguments, guard, prepare_writer
from alkstore.errors import InvalidArgument

path = os.path.abspath("a.db")

def opened(path):
    database, uri = connect_arguments(path, create=True)
    connection = sqlite3.connect(database, uri=uri, factory=Connection, isolation_level=None, timeout=0)
    guard(connection)
    connection.place = Place.of(path)
    prepare_writer(connection, "process")
    return connection

def refused(path):
    try:
        check_place(path)
    except InvalidArgument as error:
        assert "forked" in str(error), error
        return True
    return False

def locks():
    with open("/proc/locks") as file:
        return [line for line in file if f" {os.getpid()} " in line]

def child(work):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        work()
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"

connection = opened(path)
connection.execute("CREATE TABLE job (id INTEGER PRIMARY KEY, payload BLOB)")
"""


def run(tmp_path: Path, code: str) -> None:
    """Run a program whose child ends as any Python does: with every object dropped."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMMON + code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    assert (run.stdout, run.stderr) == ("ok\n", "")


INSERT = "connection.executemany('INSERT INTO job (payload) VALUES (randomblob(200))', [()] * 3000)"


@pytest.mark.parametrize(
    "work",
    [
        "lambda: None",
        # What a child does that forgets everything, and has its garbage collected, while it lives.
        "lambda: (globals().pop('connection'), __import__('gc').collect())",
    ],
)
def test_a_child_that_ends_leaves_the_open_transaction_of_its_parent_sound(tmp_path: Path, work: str) -> None:
    code = f"""
connection.execute("PRAGMA cache_size = 5")
connection.execute("BEGIN IMMEDIATE")
{INSERT}
child({work})
{INSERT}
connection.execute("COMMIT")
assert connection.execute("SELECT count(*) FROM job").fetchall() == [(6000,)]
assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
connection.close()
print("ok")
"""
    run(tmp_path, code)


def test_a_child_may_not_open_the_file_that_its_parent_had_open(tmp_path: Path) -> None:
    code = """
os.link("a.db", "b.db")
os.symlink("a.db", "c.db")

def work():
    assert all(refused(os.path.abspath(name)) for name in ("a.db", "b.db", "c.db"))
    check_place(os.path.abspath("other.db"))
    child(lambda: sys.exit(0 if refused(path) else 1))  # nor may its own child

child(work)
assert not refused(path)
connection.close()
print("ok")
"""
    run(tmp_path, code)


def test_a_child_opens_a_file_that_its_parent_had_closed(tmp_path: Path) -> None:
    code = """
connection.close()

def work():
    assert not refused(path)
    own = opened(path)
    own.execute("BEGIN")
    own.execute("SELECT * FROM job").fetchall()
    assert locks(), "SQLite locks nothing"
    own.close()

child(work)
connection.close()
print("ok")
"""
    run(tmp_path, code if Path("/proc/locks").exists() else code.replace("assert locks()", "assert True"))
