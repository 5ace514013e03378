"""`meshfleet upgrade-check`: what a new version will change, and a rehearsal on a copy."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from meshfleet.db import connect_database
from meshfleet.db.schema import list_revisions, run_migrations
from tests.cli.programs import run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.installation import Installation

OLDER, NEWEST = list_revisions()[-2:]


@pytest.fixture
def place(create_installation: Callable[[], Installation]) -> Installation:
    return create_installation()


def downgrade(data: Path) -> None:
    """Undo the last migration."""
    with closing(sqlite3.connect(data / "meshfleet.sqlite")) as database, database:
        for index in ("alarm_silence", "alarm_condition_parked"):
            database.execute(f"DROP INDEX ix_{index}")
        database.execute("ALTER TABLE alarm DROP COLUMN silence")
        database.execute("DROP TABLE silence")
        database.execute("UPDATE alembic_version SET version_num = ?", (OLDER,))


def load_schema(data: Path) -> str:
    with closing(sqlite3.connect(data / "meshfleet.sqlite")) as database:
        return str(database.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def test_a_current_database_is_not_changed(place: Installation) -> None:
    result = run_command("upgrade-check", "--data", str(place.data))
    assert result.exit_code == 0, result.output
    assert f"ok    schema              {NEWEST}, current: the database is not changed" in result.output
    assert "ok    jobs                none in progress" in result.output


def test_ignored_settings_are_named_with_what_replaces_them(place: Installation, tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text("[limits]\nqueue-length = 7")
    arguments = ("upgrade-check", "--data", str(place.data))
    assert "ok    settings            all are known to this version" in run_command(*arguments).output
    result = run_command(*arguments, "--config", str(file), MESHFLEET_LIMITS_QUEUE_LENGTH="7")
    reason = "is ignored: queues of MQTT clients are limited in bytes, by limits.queue-bytes"
    for origin in (f"{file}: limits.queue-length", "MESHFLEET_LIMITS_QUEUE_LENGTH"):
        assert f"warn  settings            {origin} {reason}" in result.output
    assert result.exit_code == 0


def test_migrations_and_jobs_in_progress_are_named(place: Installation) -> None:
    downgrade(place.data)
    with closing(sqlite3.connect(place.data / "meshfleet.sqlite")) as database, database:
        columns = [
            row[1] for row in database.execute("PRAGMA table_info(job)") if row[3] and row[1] != "state"
        ]
        names = ", ".join([*columns, "state"])
        values = ", ".join(["1"] * len(columns) + ["'IN_PROGRESS'"])
        database.execute(f"INSERT INTO job ({names}) VALUES ({values})")  # noqa: S608 # names of columns
    result = run_command("upgrade-check", "--data", str(place.data))
    lines = result.output.splitlines()
    assert result.exit_code == 0, result.output
    assert f"ok    schema              {OLDER} is upgraded to {NEWEST} at the next start" in lines
    assert [
        line for line in lines if line.startswith(f"ok    migration {NEWEST}      Adds silences of alarms")
    ]
    assert [line for line in lines if "needed for the backup before the upgrade" in line]
    assert [line for line in lines if line.startswith("warn  jobs                1 in progress")]
    assert load_schema(place.data) == OLDER


def test_the_duration_of_migrations_is_estimated_from_rows(tmp_path: Path) -> None:
    with closing(connect_database("sqlite", tmp_path)) as opened:
        opened.write_now(run_migrations, "0007")
    with closing(sqlite3.connect(tmp_path / "meshfleet.sqlite")) as database, database:
        database.execute(
            "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 120000)"
            " INSERT INTO audit (time, actor, action, target, detail) SELECT n, '', '', '', '' FROM number"
        )
    lines = run_command("upgrade-check", "--data", str(tmp_path)).output.splitlines()
    durations = {line[16:20]: line.partition(" Takes ")[2] for line in lines if "migration" in line[:16]}
    assert list(durations) == list(list_revisions()[7:])
    assert durations.pop("0008") == "about 2 s for 120,000 rows."
    assert set(durations.values()) == {"less than a second."}


def test_a_rehearsal_upgrades_and_checks_a_copy_and_removes_it(place: Installation, tmp_path: Path) -> None:
    downgrade(place.data)
    folder = tmp_path / "rehearsal"
    folder.mkdir()
    result = run_command("upgrade-check", "--data", str(place.data), "--rehearse", str(folder), "--json")
    assert result.exit_code == 0, result.output
    for text in (
        "restored to a copy",
        "the copy was upgraded",
        f"{NEWEST}, current",
        "1 firmware images read",
    ):
        assert text in result.output
    assert list(folder.iterdir()) == []
    assert load_schema(place.data) == OLDER


def test_a_rehearsal_with_damaged_data_fails(place: Installation, tmp_path: Path) -> None:
    for image in (place.data / "images").iterdir():
        image.unlink()
    result = run_command("upgrade-check", "--data", str(place.data), "--rehearse", str(tmp_path))
    assert result.exit_code == 1
    assert "fail  rehearsal " in result.output
    assert "      -> meshfleet doctor --deep" in result.output


def test_a_newer_database_is_a_failure(place: Installation) -> None:
    with closing(sqlite3.connect(place.data / "meshfleet.sqlite")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    result = run_command("upgrade-check", "--data", str(place.data))
    assert result.exit_code == 1
    assert "fail  schema              9999 is of a newer Meshfleet" in result.output
