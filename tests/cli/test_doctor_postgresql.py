"""`meshfleet doctor` with PostgreSQL."""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING

import psycopg

from meshfleet.db.schema import list_revisions
from tests.databases import create_database, create_empty_database
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.cli.installation import Installation

_numbers = count()

_INSERT_FIRMWARE = """
    INSERT INTO firmware
        (id, model, version, type, file_name, size, sha256, hardware, notes, state, created_by, created_at)
        VALUES ('fw-1', 24, '1.0.0', 0, 'a', 5, 'x', '[]', '', 'draft', 'anna', 0)
"""

_INSERT_PLAN = """
    INSERT INTO site VALUES (11, 'Depot', 1, 1);
    INSERT INTO floor VALUES (11, 0, NULL, 0, 0, 9, 9, NULL);
    INSERT INTO plan (site, floor, content_type, width, height, size, sha256, reference, updated_at)
        VALUES (11, 0, 'image/png', 9, 9, 1, 'x', '[]', 1)
"""


_HEALTHY = (
    "ok    database            {name}, version {version}, ",
    f"ok    schema              {list_revisions()[-1]}, current",
    "ok    disk                ",
    "ok    rejects             none in the last 24 hours",
    "warn  backup              no backup with samples was written and checked yet",
    "ok    gateways            0 claimed, all seen",
    "ok    images              0 firmware images read",
    "ok    plans               0 plans of floors read",
)


@each_row(
    ("script", "expected"),
    [
        ("SELECT 1", _HEALTHY),
        (
            "ALTER DATABASE {database} CONNECTION LIMIT 5",
            [
                "warn  database            {name}, version {version}, 1 of 5 connections in use; a service",
            ],
        ),
        ("UPDATE alembic_version SET version_num = '9999'", ["fail  schema              9999 is of a newer"]),
        (
            "DROP TABLE reject",
            [
                'fail  rejects             could not be checked: relation "reject" does not exist',
                "ok    gateways            0 claimed, all seen",
            ],
        ),
        (_INSERT_PLAN, ["fail  plans               the plan of floor 0 of Depot (site-000000000000000b) is"]),
        (
            _INSERT_FIRMWARE,
            ["fail  images              the image of model 0018, version 1.0.0 is damaged: its SHA-256"],
        ),
    ],
)
def test_a_postgresql_database_is_examined(
    create_installation: Callable[[], Installation],
    postgresql_server: str,
    script: str,
    expected: Sequence[str],
) -> None:
    database = f"doctor_{next(_numbers)}"
    url = create_database(postgresql_server, database)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script.format(database=database))
        version = connection.info.server_version
    output = create_installation().examine("--database", url, "--deep").stdout
    values = {
        "name": f"PostgreSQL at {url.split('@')[1]}",
        "version": f"{version // 10000}.{version % 10000}",
    }
    for line in expected:
        assert f"\n{line.format(**values)}" in output


def test_a_postgresql_server_that_does_not_respond_is_a_finding(
    create_installation: Callable[[], Installation],
) -> None:
    result = create_installation().examine("--database", "postgresql://anna:topsecret@127.0.0.1:1/fleet")
    (line,) = re.findall(r"(?m)^.*database-unreachable.*$", result.stdout)
    assert line.startswith(
        "fail  database            database-unreachable: PostgreSQL at 127.0.0.1:1/fleet: connection failed"
    )
    assert "topsecret" not in result.output


def test_a_postgresql_database_that_was_never_used_is_left_empty(
    create_installation: Callable[[], Installation], postgresql_server: str
) -> None:
    url = create_empty_database(postgresql_server, "doctor_unused")
    assert (
        "warn  schema              no tables of Meshfleet"
        in create_installation().examine("--database", url).stdout
    )
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT * FROM pg_tables WHERE schemaname = 'public'").fetchall() == []
