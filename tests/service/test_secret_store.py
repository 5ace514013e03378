"""A secret is created once and the same for all processes."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from meshfleet.db import open_database
from meshfleet.service.secret_store import load_or_create_secret
from tests.databases import create_database
from tests.db.parallel_processes import ParallelProcesses, start_processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.rule("rest-174")


def test_a_secret_is_created_once_and_never_changes(database: Database) -> None:
    first = database.write_now(load_or_create_secret, "tokens")
    assert len(first) == 32
    assert [database.write_now(load_or_create_secret, "tokens") for _ in range(3)] == [first] * 3


def test_every_name_has_a_secret_of_its_own(database: Database) -> None:
    assert (
        len({database.write_now(load_or_create_secret, name) for name in ("tokens", "pages", "other")}) == 3
    )


def test_two_databases_have_no_secret_in_common(tmp_path: Path, sqlite_template: Path) -> None:
    secrets = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(sqlite_template, tmp_path / name)
        with closing(open_database("sqlite", tmp_path / name)) as database:
            secrets.add(database.write_now(load_or_create_secret, "tokens"))
    assert len(secrets) == 2


_PROGRAM = """
from pathlib import Path
from meshfleet.db import open_database
from meshfleet.service.secret_store import load_or_create_secret

opened = {}

def work(address, folder, name):
    if address not in opened:
        opened[address] = open_database(address, Path(folder))
    return opened[address].write_now(load_or_create_secret, name)
"""


@pytest.fixture(scope="module")
def processes() -> Iterator[ParallelProcesses]:
    with start_processes(_PROGRAM) as processes:
        yield processes


def test_concurrent_processes_get_the_same_secret_from_sqlite(
    processes: ParallelProcesses, tmp_path: Path
) -> None:
    _assert_same_secrets(processes, "sqlite", tmp_path)


def test_concurrent_processes_get_the_same_secret_from_postgresql(
    processes: ParallelProcesses, postgresql_server: str, tmp_path: Path
) -> None:
    _assert_same_secrets(processes, create_database(postgresql_server, "secrets"), tmp_path)


def _assert_same_secrets(processes: ParallelProcesses, address: str, folder: Path) -> None:
    for number in range(20):
        one, other = processes.call_all(address, folder, f"name-{number}")
        assert one == other
        assert one.startswith("b")
