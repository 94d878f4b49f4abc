import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from alkstore.errors import DatabaseError, InvalidArgument
from alkstore_sqlite.errors import is_busy, translated
from alkstore_sqlite.network import reason, reason_on_linux, reason_on_windows
from alkstore_sqlite.surroundings import (
    check_durability,
    check_place,
    check_version,
    connect_arguments,
    prepare_reader,
    prepare_writer,
)

NOBODY = 65_534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can get to, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@contextmanager
def common_rights() -> Iterator[None]:
    """Root may write everything, so act as somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(NOBODY)
    except OSError as error:
        pytest.skip(f"root cannot give up its rights here: {error}")
    try:
        yield
    finally:
        os.seteuid(0)


def open_file(path: Path, *, create: bool = True) -> sqlite3.Connection:
    database, uri = connect_arguments(str(path), create=create)
    return sqlite3.connect(database, uri=uri, isolation_level=None, timeout=0)


def value(connection: sqlite3.Connection, pragma: str) -> object:
    return connection.execute(f"PRAGMA {pragma}").fetchone()[0]


# ---------------------------------------------------------------- where a file stands


def test_an_old_sqlite_is_refused_with_both_versions() -> None:
    check_version((3, 40, 0))
    check_version((3, 50, 1))
    check_version()

    with pytest.raises(InvalidArgument, match=r"must be 3\.40\.0 or newer, this Python has 3\.39\.4"):
        check_version((3, 39, 4))


def test_a_file_that_is_there_empty_or_not_yet_is_accepted_and_none_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with closing(open_file(tmp_path / "full.db")) as connection:
        connection.execute("CREATE TABLE business (id INTEGER)")

    for name in ("none.db", "empty.db", "full.db"):
        check_place(str(tmp_path / name))

    assert sorted(os.listdir(tmp_path)) == ["empty.db", "full.db"]


def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError) as caught:
        check_place(str(tmp_path / "no" / "a.db"))

    assert str(caught.value) == f"folder {str(tmp_path / 'no')!r} does not exist; create it"
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert os.listdir(tmp_path) == []


def test_the_folder_that_counts_is_the_one_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "a.db").symlink_to(tmp_path / "no" / "a.db")

    with pytest.raises(DatabaseError, match="no' does not exist"):
        check_place(str(tmp_path / "a.db"))


def test_a_link_that_leads_to_itself_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.db").symlink_to(tmp_path / "a.db")

    with pytest.raises(DatabaseError, match="cannot be looked at: Too many levels"):
        check_place(str(tmp_path / "a.db"))


def test_a_file_where_a_folder_must_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(InvalidArgument, match="file' is none"):
        check_place(str(tmp_path / "file" / "a.db"))


def test_what_is_no_ordinary_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    for path in (str(tmp_path / "pipe"), str(tmp_path / "folder"), "/dev/null"):
        with pytest.raises(InvalidArgument, match="must lead to an ordinary file"):
            check_place(path)


def test_a_file_that_may_only_be_read_is_an_error(folder: Path) -> None:
    folder.chmod(0o777)
    (folder / "a.db").touch(mode=0o444)

    with (
        common_rights(),
        pytest.raises(DatabaseError, match=r"a\.db' is read-only for this process") as caught,
    ):
        check_place(str(folder / "a.db"))

    assert isinstance(caught.value.__cause__, PermissionError)


def test_a_folder_that_may_only_be_read_is_an_error(folder: Path) -> None:
    (folder / "a.db").touch()
    (folder / "a.db").chmod(0o666)
    folder.chmod(0o555)

    for name in ("a.db", "none.db"):
        with common_rights(), pytest.raises(DatabaseError, match="is read-only for this process") as caught:
            check_place(str(folder / name))

        assert isinstance(caught.value.__cause__, PermissionError)
    folder.chmod(0o755)


def test_a_folder_that_may_not_be_entered_is_an_error(folder: Path) -> None:
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed").chmod(0o600)

    for path in (folder / "closed" / "a.db", folder / "closed" / "inner" / "a.db"):
        with common_rights(), pytest.raises(DatabaseError) as caught:
            check_place(str(path))

        assert isinstance(caught.value.__cause__, PermissionError)
    (folder / "closed").chmod(0o755)


# ---------------------------------------------------------------- network file systems

MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:40 / /mnt/nas rw,relatime shared:2 master:3 - nfs4 nas:/export rw,vers=4.2
41 27 0:41 / /mnt/with\040space rw - cifs //nas/share rw
42 40 254:1 / /mnt/nas/local rw - xfs /dev/vdb rw
43 27 0:43 / /media/ada/remote rw - fuse.sshfs ada@host: rw
44 27 0:44 / /twice rw - ext4 /dev/vdc rw
45 44 0:45 / /twice rw - ceph mon:/ rw
46 27 0:46 / /hidden rw - nfs nas:/x rw
47 46 254:2 / /hidden rw - ext4 /dev/vdd rw
48 27 0:48 / /mnt/c rw - 9p C:\134 rw
49 27 0:49 / /odd rw - zfs pool rw
not a line of this form
"""


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/srv/app.db", None),
        ("/mnt/nas/app.db", "NFS"),
        ("/mnt/nas", "NFS"),
        ("/mnt/nas2/app.db", None),
        ("/mnt/nas/local/app.db", None),
        ("/mnt/with space/app.db", "SMB"),
        ("/media/ada/remote/deep/app.db", "another machine"),
        ("/twice/app.db", "many machines"),
        ("/hidden/app.db", None),
        ("/mnt/c/app.db", "another system"),
        ("/odd/app.db", None),
    ],
)
def test_the_nearest_mount_says_whether_a_path_is_on_a_network(path: str, words: str | None) -> None:
    found = reason_on_linux(path, MOUNTS)

    assert (found is None) if words is None else (found is not None and words in found)


def test_nothing_is_said_where_nothing_can_be_told() -> None:
    assert reason_on_linux("/srv/app.db", "") is None


def test_a_share_of_windows_is_told_by_its_name() -> None:
    for share in (r"\\nas\share\app.db", "//nas/share/app.db", r"\\?\UNC\nas\share\app.db"):
        assert reason_on_windows(share) == "a network share"
    for local in (r"C:\srv\app.db", r"\\?\C:\srv\app.db", r"\\.\C:\srv\app.db", r"\srv\app.db"):
        assert reason_on_windows(local) is None


def test_a_temporary_folder_is_on_no_network(tmp_path: Path) -> None:
    assert reason(str(tmp_path)) is None


# ---------------------------------------------------------------- settings of a connection


@pytest.mark.parametrize(("durability", "synchronous", "full"), [("power", 2, 1), ("process", 1, 0)])
def test_a_writer_syncs_as_its_durability_says(
    tmp_path: Path, durability: str, synchronous: int, full: int
) -> None:
    with closing(open_file(tmp_path / "a.db")) as connection:
        prepare_writer(connection, check_durability(durability))
        prepare_writer(connection, check_durability(durability))  # it may be repeated

        assert value(connection, "journal_mode") == "wal"
        assert value(connection, "synchronous") == synchronous
        assert value(connection, "fullfsync") == full
        assert value(connection, "checkpoint_fullfsync") == 1
        assert value(connection, "busy_timeout") == 0


def test_a_writer_leaves_the_applications_settings_alone(tmp_path: Path) -> None:
    names = (
        "foreign_keys",
        "recursive_triggers",
        "cache_size",
        "application_id",
        "user_version",
        "auto_vacuum",
    )
    with closing(open_file(tmp_path / "a.db")) as connection:
        connection.execute("PRAGMA application_id = 7")
        connection.execute("PRAGMA user_version = 8")
        connection.execute("CREATE TABLE business (id INTEGER)")
        before = [value(connection, name) for name in names]

        prepare_writer(connection, "power")

        assert [value(connection, name) for name in names] == before
        assert before[3:5] == [7, 8]


def test_a_huge_transaction_leaves_no_huge_log(tmp_path: Path) -> None:
    with closing(open_file(tmp_path / "a.db")) as connection:
        prepare_writer(connection, "process")
        connection.execute("CREATE TABLE big (data BLOB)")
        connection.execute("INSERT INTO big VALUES (zeroblob(40000000))")
        grown = os.stat(tmp_path / "a.db-wal").st_size

        connection.execute("INSERT INTO big VALUES (x'00')")

        assert grown > 40_000_000
        assert os.stat(tmp_path / "a.db-wal").st_size <= 16 * 1024 * 1024


def test_a_durability_that_is_none_is_refused() -> None:
    for wrong in ("full", "", None, 2, ["power"]):
        with pytest.raises(InvalidArgument, match="durability must be 'power' or 'process', got"):
            check_durability(wrong)


def test_a_file_that_cannot_have_a_log_is_an_error(tmp_path: Path) -> None:
    database, uri = connect_arguments(str(tmp_path / "a.db"), create=True)
    # A way of SQLite's own to do without locks, and so without the memory that a write-ahead log shares.
    with (
        closing(sqlite3.connect(f"{database}&vfs=unix-none", uri=uri)) as connection,
        pytest.raises(
            DatabaseError, match=r"a\.db' cannot have a write-ahead log, its journal mode stays 'delete'"
        ),
    ):
        prepare_writer(connection, "power")


def test_a_foreign_file_is_an_error_and_keeps_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"\x89PNG not a database " * 500)
    before = hashlib.sha256(path.read_bytes()).digest()

    with (
        closing(open_file(path)) as connection,
        pytest.raises(DatabaseError, match="is no SQLite database"),
        translated(str(path)),
    ):
        prepare_writer(connection, "power")

    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert os.listdir(tmp_path) == ["a.db"]


def test_a_file_with_a_damaged_header_is_an_error_and_keeps_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(open_file(path)) as connection:
        connection.execute("CREATE TABLE business (id INTEGER)")
    path.write_bytes(os.urandom(100) + path.read_bytes()[100:])
    before = path.read_bytes()

    with (
        closing(open_file(path)) as connection,
        pytest.raises(DatabaseError, match="is encrypted, or has a damaged header"),
        translated(str(path)),
    ):
        prepare_writer(connection, "power")

    assert path.read_bytes() == before


def test_an_application_in_the_middle_of_a_write_is_waited_for(tmp_path: Path) -> None:
    with (
        closing(open_file(tmp_path / "a.db")) as application,
        closing(open_file(tmp_path / "a.db")) as connection,
    ):
        application.execute("BEGIN IMMEDIATE")
        application.execute("CREATE TABLE business (id INTEGER)")

        with pytest.raises(sqlite3.OperationalError) as caught:
            prepare_writer(connection, "power")
        application.execute("COMMIT")
        prepare_writer(connection, "power")

        assert is_busy(caught.value)
        assert value(connection, "journal_mode") == "wal"


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    with closing(open_file(tmp_path / "a.db")) as writer, closing(open_file(tmp_path / "a.db")) as reader:
        prepare_writer(writer, "power")
        writer.execute("CREATE TABLE job (id INTEGER)")
        prepare_reader(reader)

        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("INSERT INTO job VALUES (1)")

        assert reader.execute("SELECT id FROM job").fetchall() == []
        assert value(reader, "busy_timeout") == 0
