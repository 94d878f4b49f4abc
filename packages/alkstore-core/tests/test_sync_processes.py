"""The surface for plain threads and the end of processes, their forks and their interrupts."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def run(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_process_that_is_forked_before_the_first_call_opens_its_own(tmp_path: Path) -> None:
    done = run(
        """
        import os, sys
        import alkstore.sync

        store = alkstore.sync.open(f"sqlite:///{sys.argv[1]}/app.db")
        queue = store.queue("q")
        store._turn.acquire()  # as another thread may hold it at that moment
        child = os.fork()
        if child:
            store._turn.release()
        queue.enqueue("parent" if child else "child")
        if not child:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert sorted(job.payload for job in queue.list()) == ["child", "parent"]
        """,
        str(tmp_path),
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_what_was_used_before_a_fork_says_so_in_the_child_and_goes_on_in_the_parent(tmp_path: Path) -> None:
    done = run(
        """
        import os, sys
        import alkstore.sync
        from alkstore import InvalidArgument

        store = alkstore.sync.open(f"sqlite:///{sys.argv[1]}/app.db")
        queue = store.queue("q")
        queue.enqueue_batch([1, 2])
        mine = queue.claim_one()
        child = os.fork()
        if not child:
            for call in (mine.ack, queue.stats):  # SQLite's locks do not hold in both processes
                try:
                    call()
                except InvalidArgument as error:
                    print(error)
            store.close()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert mine.ack()
        assert [job.payload for job in queue.list()] == [2]
        """,
        str(tmp_path),
    )

    assert (done.returncode, done.stderr) == (0, "")
    handle, queue = done.stdout.splitlines()
    assert "make another one after a fork" in handle
    assert "open the store after the fork only" in queue


def test_a_store_that_nobody_closes_is_closed_at_the_end_of_the_process(tmp_path: Path) -> None:
    done = run(
        """
        import sys
        import alkstore.sync

        store = alkstore.sync.open(f"sqlite:///{sys.argv[1]}/app.db")
        store.queue("q").enqueue(1)
        """,
        str(tmp_path),
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "app.db"
    ]  # closed, so without a log beside it


def test_a_store_that_could_not_be_made_is_not_closed_at_the_end_of_the_process() -> None:
    done = run(
        """
        import sys
        import alkstore.sync

        def kept(error):
            sys.last = error  # as an interactive session keeps it, with the frames and what they hold

        try:
            alkstore.sync.open("sqlite:///app.db", colour="red")
        except alkstore.InvalidArgument as error:
            kept(error)
        """
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_ends_a_wait_and_the_store_is_usable_after_it(tmp_path: Path) -> None:
    done = run(
        """
        import os, signal, sys, threading
        import alkstore.sync

        # A shell's background job ignores SIGINT, and its children would too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with alkstore.sync.open(f"sqlite:///{sys.argv[1]}/app.db") as store:
            queue = store.queue("q")
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                queue.claim()
            except KeyboardInterrupt:
                print("interrupted")
            queue.enqueue(1)
            with queue.claim_one() as handle:
                print(handle.job.attempts)
        """,
        str(tmp_path),
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n1\n", "")
