"""What a column over a server gets ready: a server that ends with its process, and a factory that comes to rest."""

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from alkstore import Store
from alkstore_contract_suite import rows
from alkstore_contract_suite.factory import Available, Fault, Missing, StorageEnded, Unsupported
from alkstore_contract_suite.own_server import OwnServer
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.running import run
from alkstore_contract_suite.server import ServerBackend, ServerColumn, ServerFactory
from alkstore_mem import MemStore
from alkstore_mem.contract import CAPABILITIES

PROGRAM = """
import os, socket, sys
folder = sys.argv[1]
with open(f"{folder}/pids", "w") as file:
    print(os.getpid(), os.getppid(), file=file)
if os.path.exists(f"{folder}/socket"):
    os.unlink(f"{folder}/socket")
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{folder}/socket")
listener.listen()
while True:
    listener.accept()
"""

OWNER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_server import Listening
with Listening() as server:
    print(server.folder, flush=True)
    sys.stdin.read()
"""


class Listening(OwnServer):
    def __init__(self) -> None:
        super().__init__("listening")

    @property
    def url(self) -> str:
        return f"{self.folder}/socket"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-S", "-c", PROGRAM, str(self.folder)]

    def is_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(self.url) == 0

    def leave(self) -> None:
        """Nobody stays."""


class Silent(Listening):
    patience = 0.05

    def command(self) -> Sequence[str]:
        return ["/bin/sh", "-c", "echo no room; exec sleep 60"]


class Refusing(Listening):
    """It ends at once, as of a wrong option; the time that it may take must not be waited for."""

    patience = 600.0

    def command(self) -> Sequence[str]:
        return ["/bin/sh", "-c", "echo no such option"]


def test_a_server_lets_clients_in_and_leaves_nothing_behind() -> None:
    with Listening() as server:
        assert server.is_ready()
        assert server.folder.is_dir()

    assert not server.folder.exists()


def test_a_stopped_server_starts_again_on_what_it_left() -> None:
    with Listening() as server:
        (server.folder / "data").write_text("kept", "utf-8")
        server.stop()
        was_ready = server.is_ready()
        server.start()

        assert (was_ready, server.is_ready()) == (False, True)
        assert (server.folder / "data").read_text("utf-8") == "kept"


def test_a_server_that_does_not_start_says_what_it_wrote_and_leaves_nothing() -> None:
    server = Silent()

    with pytest.raises(RuntimeError, match=r"did not let clients in within 0\.05 s; its log: "):
        server.__enter__()

    assert not server.folder.exists()


def test_a_server_that_ends_at_once_is_not_waited_for() -> None:
    server = Refusing()

    with pytest.raises(RuntimeError, match="ended before it let clients in; its log: no such option"):
        server.__enter__()

    assert not server.folder.exists()


def test_a_question_that_raises_while_nobody_answers_is_told_of_by_its_name() -> None:
    class Raising(Listening):
        def is_ready(self) -> bool:
            raise ConnectionError("refused")

    server = Raising()

    with pytest.raises(
        RuntimeError, match=r"Raising\.is_ready raised ConnectionError\('refused'\); while nobody"
    ):
        server.__enter__()

    assert not server.folder.exists()


async def test_a_server_that_ends_by_itself_is_told_of_and_is_there_for_the_next_case() -> None:
    def factory(url: str, seed: str, server: Listening) -> Any:
        return Factory(url, seed, Kv())

    with Listening() as server:
        backend = ServerBackend(server, factory)
        with pytest.raises(StorageEnded, match="server ended by itself, and was started again; its log: "):
            async with backend.scope("case"):
                end(server)
        was_ready = server.is_ready()
        async with backend.scope("next"):
            pass

        assert was_ready


async def test_a_server_that_was_stopped_stays_so() -> None:
    with Listening() as server:
        server.stop()

        assert (server.revive(), server.is_ready()) == (None, False)


def end(server: Listening) -> None:
    pid = int((server.folder / "pids").read_text("utf-8").split()[0])
    assert server._process is not None
    assert server._process.stdout is not None
    os.kill(pid, signal.SIGKILL)
    assert select.select([server._process.stdout], [], [], 10)[0]


@pytest.mark.parametrize("how", ["alone", "with its group"])
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux can wait for somebody else's process")
def test_a_server_ends_with_a_process_that_was_killed(how: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        pids = [int(word) for word in (folder / "pids").read_text("utf-8").split()]
        watched = [os.pidfd_open(pid) for pid in pids]
        (os.kill if how == "alone" else os.killpg)(owner.pid, signal.SIGKILL)

    ended = [bool(select.select([each], [], [], 10)[0]) for each in watched]
    for each in watched:
        os.close(each)

    assert ended == [True, True]
    assert not folder.exists()


class Kv:
    """A server that is there already."""

    url = "kv://there"


class Factory(ServerFactory[Kv]):
    def __init__(self, url: str, seed: str, server: Kv | None = None) -> None:
        super().__init__(url, seed, server)
        self.told: list[object] = []

    def make_store(self, **options: Any) -> Store:
        return MemStore(clock=self.clock, random=self.random, **options)

    async def set_clock(self, now: int) -> None:
        self.told.append(now)

    async def empty(self) -> None:
        self.told.append("empty")

    async def cut(self, store: Store) -> None:
        self.told.append("cut")

    def moves(self, store: Store) -> tuple[int, ...]:
        return ()

    async def rest(self, store: Store) -> None:
        self.told.append("rest")


class Restless(Factory):
    """Its stores never have done everything."""

    def moves(self, store: Store) -> tuple[int, ...]:
        return (len(self.told),)


class Away(Factory):
    """Its server cannot be reached."""

    def make_store(self, **options: Any) -> Store:
        raise OSError("connection refused")


def test_a_storage_that_ended_is_the_reason_of_whatever_else_failed() -> None:
    class Ending:
        @asynccontextmanager
        async def scope(self, case: str) -> AsyncIterator[Factory]:
            yield Away("kv://there", "seed", Kv())
            raise StorageEnded("the server ended by itself")

    row = next(each for each in rows.registered() if each.id == "Q-01")

    assert run(Ending(), Case(row, "kv", "plain"), seed=0).reason == "the server ended by itself"


def column(**options: Any) -> ServerColumn[Kv]:
    def server() -> AbstractContextManager[Kv]:
        return nullcontext(Kv())

    given: dict[str, Any] = {"server": server, "factory": Factory, "available": lambda: None, **options}
    return ServerColumn("kv", version="0", contract="1.0", capabilities=CAPABILITIES, **given)


async def test_a_scope_begins_empty_and_on_the_time_of_the_case() -> None:
    async with column().backend("w1") as backend, backend.scope("case") as factory:
        assert isinstance(factory, Factory)
        assert factory.told == ["empty", factory.clock.now()]


async def test_time_moves_at_both_ends_and_in_a_child_process_at_its_own() -> None:
    ours, childs = Factory("kv://there", "seed", Kv()), Factory("kv://there", "seed")
    begun = ours.clock.now()

    await ours.advance(2)
    await childs.advance(2)

    assert (ours.told, childs.told) == ([begun + 2_000_000], [])
    assert await ours.now() == await childs.now()


async def test_every_store_that_is_open_comes_to_rest() -> None:
    factory = Factory("kv://there", "seed", Kv())
    one, other = await factory.open(), await factory.open("b")

    await other.aclose()
    await factory.settle()
    await one.aclose()

    assert factory.told == ["rest"]


async def test_stores_that_never_come_to_rest_are_told_of() -> None:
    factory = Restless("kv://there", "seed", Kv())
    async with aclosing(await factory.open()):
        with pytest.raises(RuntimeError, match="stores on kv://there did not come to rest"):
            await factory.settle()


def test_another_process_gets_the_same_server_and_does_not_own_it() -> None:
    factory = Factory("kv://there", "seed", Kv())
    factory.way = "kv://through-a-proxy"
    remote = factory.remote()
    assert remote is not None

    other = pickle.loads(pickle.dumps(remote))("p1")

    assert (type(other), other.url, other.server) == (Factory, "kv://through-a-proxy", None)
    assert other.random.random() != factory.random.random()


async def test_what_cannot_be_broken_is_unsupported() -> None:
    factory = Factory("kv://there", "seed", Kv())
    async with aclosing(await factory.open()) as store:
        assert isinstance(factory.fault(Fault.READ_ONLY, store), Unsupported)


def test_a_column_says_what_is_missing_to_run_it() -> None:
    assert column().available() == Available()
    assert column(available=lambda: "install kv").available() == Missing("install kv")
