import asyncio
import os
import pickle
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hanging import HUNG

from alkstore import Closed, Store
from alkstore_contract_suite.factory import Crash, Fault, Stored, StoreFactory, Unsupported
from alkstore_contract_suite.single_file import SingleFileBackend, SingleFileColumn, SingleFileFactory
from alkstore_mem import MemStore


class Files(SingleFileFactory):
    """Stores that keep nothing in the file: what becomes of the file is what is looked at here."""

    def __init__(self, folder: Path, seed: str) -> None:
        super().__init__(folder, seed)
        self.news: list[bool] = []
        self.was_still = False

    def make_store(self, **options: Any) -> Store:
        return MemStore(clock=self.clock, random=self.random, **options)

    async def settled(self, store: Store) -> bool:
        return self.news.pop() if self.news else False

    def still(self) -> AbstractContextManager[object]:
        return self._still()

    @contextmanager
    def _still(self) -> Iterator[None]:
        self.was_still = True
        yield

    @classmethod
    def make_template(cls, path: Path) -> bool:
        path.write_text("the application's", encoding="utf-8")
        return True


@asynccontextmanager
async def scope(folder: Path) -> AsyncIterator[Files]:
    async with SingleFileBackend(folder, Files).scope("case") as factory:
        assert isinstance(factory, Files)
        yield factory


async def test_every_scope_begins_with_a_copy_of_the_template_and_leaves_nothing(tmp_path: Path) -> None:
    backend = SingleFileBackend(tmp_path, Files)
    paths = []

    for _ in range(2):
        async with backend.scope("case") as factory:
            assert isinstance(factory, Files)
            paths.append(factory.path)
            assert factory.path.read_text(encoding="utf-8") == "the application's"
            factory.path.write_text("changed", encoding="utf-8")

    assert paths[0] != paths[1]
    assert os.listdir(tmp_path) == ["template"]


async def test_blank_storage_has_no_file(tmp_path: Path) -> None:
    async with scope(tmp_path) as factory:
        await factory.blank()

        assert not factory.path.exists()


@pytest.mark.parametrize(("kind", "left"), [(Crash.KILL, ["", "-shm", "-wal"]), (Crash.DROP, ["", "-wal"])])
async def test_a_crash_goes_on_with_what_lay_there_before_the_close(
    tmp_path: Path, kind: Crash, left: list[str]
) -> None:
    async with scope(tmp_path) as factory:
        store, before = await factory.open(), factory.path
        for suffix in ("-shm", "-wal"):
            before.with_name(before.name + suffix).write_text(suffix, encoding="utf-8")

        await factory.crash(store, kind)

        found = sorted(file.name.removeprefix(before.name) for file in factory.path.parent.iterdir())
        assert found == left
        assert factory.path != before
        assert factory.was_still
        with pytest.raises(Closed):
            await store.queues()


async def test_many_crashes_lengthen_no_name(tmp_path: Path) -> None:
    async with scope(tmp_path) as factory:
        store = await factory.open()
        lengths = set()
        for _ in range(9):
            await factory.crash(store, Crash.KILL)
            store = await factory.open()
            lengths.add(len(factory.path.parent.name))
        await store.aclose()

    assert len(lengths) == 1
    assert [name for name in os.listdir(tmp_path) if "after" in name] == []


async def test_a_crash_beside_an_open_store_is_refused(tmp_path: Path) -> None:
    async with scope(tmp_path) as factory:
        first, second = await factory.open(), await factory.open("b")

        with pytest.raises(RuntimeError, match="close the scope's other stores"):
            await factory.crash(first, Crash.KILL)

        await second.aclose()
        await factory.crash(first, Crash.KILL)


async def test_a_settle_looks_until_nothing_comes_of_it(tmp_path: Path) -> None:
    async with scope(tmp_path) as factory:
        store = await factory.open_with(worker_id="one")
        factory.news = [True, False, True, True]

        await factory.settle()

        assert factory.news == [True]
        await store.aclose()


async def test_a_settle_does_not_go_on_for_ever(tmp_path: Path) -> None:
    async with scope(tmp_path) as factory, asyncio.timeout(HUNG):
        store = await factory.open()
        factory.news = [True] * 10_000

        with pytest.raises(RuntimeError, match="did not come to rest"):
            await factory.settle()

        await store.aclose()


async def test_another_process_has_the_same_file_and_other_randomness(tmp_path: Path) -> None:
    async with scope(tmp_path) as factory:
        remote = pickle.loads(pickle.dumps(factory.remote()))

        factories = [remote(process) for process in ("p1", "p2")]

        assert [each.path for each in factories] == [factory.path] * 2
        assert len({each.random.random() for each in (factory, *factories)}) == 3


async def test_what_the_column_does_not_say_is_unsupported(tmp_path: Path) -> None:
    async with scope(tmp_path) as factory:
        store: Store = await factory.open()
        offered: StoreFactory = factory

        assert isinstance(offered.fault(Fault.READ_ONLY, store), Unsupported)
        assert (offered.business(), offered.outside("c"), await offered.dump_restore()) == (None, None, None)
        with pytest.raises(RuntimeError, match="'migrations'"):
            await offered.foreign_schema(newer=True)
        await store.aclose()


def test_a_column_tells_what_its_file_is_one_of() -> None:
    column: object = SingleFileColumn(
        "toy", version="1", contract="1.0", capabilities={}, factory=Files, storage="ToyDB 3"
    )

    assert isinstance(column, Stored)
    assert column.storage() == "ToyDB 3"
