"""`meshfleet database grant-reader`: SQL programs read samples in PostgreSQL, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import errors, sql

from meshfleet.db import connect_database
from meshfleet.db.samples import SampleExtras, SampleKind
from meshfleet.db.tables import device, foreign_name, metadata
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Identifier, IdentifierName
from tests.cli.programs import run_command
from tests.databases import create_database, create_empty_database
from tests.db.samples.store_harness import DAY, DEVICE, NOON, OTHER, StoreHarness, build_row, build_stray_row
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result
    from sqlalchemy import Connection

_numbers = count()
_REFUSALS = (errors.InsufficientPrivilege, errors.ObjectNotInPrerequisiteState)
"""Errors of PostgreSQL for missing rights, and for a view that cannot be changed."""

MAC = "d0cf5e000001"
ODD_NAME = "level;\n'of\" water"
_DEVICE = {"named": True, "model": 0, "variant": 0, "firmware": "0.0.0", "beta": 0, "hardware": "0.0.0"}
_DEVICE |= {"connected": False, "connected_at": 0, "created_at": 0}

VALUES: list[tuple[dict[str, Any], tuple[str, str, float | None, str | None]]] = [
    ({}, ("measurement", "temperature", 21.5, None)),
    ({"number": 3, "raw": b"\3"}, ("measurement", "temperature", 3.0, None)),
    (
        {"number": 1, "kind": SampleKind.PROPERTY, "identifier": 0x9800, "more": SampleExtras(text="true")},
        ("property", "alarm", 1.0, "true"),
    ),
    ({"number": None, "more": SampleExtras(text='"dfu"')}, ("measurement", "temperature", None, "dfu")),
    ({"number": None, "more": SampleExtras(text='""')}, ("measurement", "temperature", None, "")),
    ({"number": None, "more": SampleExtras(text="null")}, ("measurement", "temperature", None, None)),
    (
        {"number": None, "more": SampleExtras(text="9007199254740993")},
        ("measurement", "temperature", 9007199254740993.0, "9007199254740993"),
    ),
    # Values that PostgreSQL would not accept as JSON, or as a number, must not make the query fail.
    *(
        ({"number": None, "more": SampleExtras(text=text)}, ("measurement", "temperature", None, text))
        for text in ('"\\u0000"', '"\\ud800"', '{"x":"y"}', "[" * 9999, "9" * 400, '"a\\"b"')
    ),
    ({"number": None, "raw": b"\xca\xfe"}, ("measurement", "temperature", None, "cafe")),
    (
        {"number": None, "kind": SampleKind.MEASUREMENT_ERROR, "more": SampleExtras(error=9)},
        ("measurement-error", "temperature", None, "9"),
    ),
    (
        {"number": None, "kind": SampleKind.EVENT, "identifier": 0x8113},
        ("event", "watchdog-reset-event", None, None),
    ),
    *(
        ({"identifier": identifier_to_int(Identifier(text))}, ("measurement", text, 21.5, None))
        for text in ("ef", "00ef", "0abc", "00000001", "7f000000", "ffffffff")
    ),
    ({"identifier": identifier_to_int(IdentifierName(ODD_NAME))}, ("measurement", ODD_NAME, 21.5, None)),
]
"""Fields of stored samples, and kind, identifier, value and text that the view shows."""


class Server:
    """Database with samples, of a service that does not run, and roles of its server that a test creates."""

    def __init__(self, server: str, folder: Path) -> None:
        self.name = f"reader_{next(_numbers)}"
        self.url = create_database(server, self.name)
        self.folder = folder
        self._roles: list[str] = []

    def new_role(self) -> str:
        role = f"role_{next(_numbers)}"
        self._roles.append(role)
        return role

    def grant(self, role: str, *options: str, stdin: str = "", user: str = "postgres") -> Result:
        url = self.url.replace("postgres@", f"{user}@")
        place = ("--database", url, "--data", str(self.folder))
        return run_command("database", "grant-reader", role, *place, *options, stdin=stdin)

    def connect(self, role: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(self.url.replace("postgres@", f"{role}@"), autocommit=True)

    def write(self) -> None:
        """Write samples of three days of two devices, one of every value, and one with a wrong clock."""
        database = connect_database(self.url, self.folder)
        database.write_now(_insert_devices)
        with StoreHarness(database, self.folder) as harness:
            rows = [build_row(NOON + i, **({"number": 21.5} | given)) for i, (given, _) in enumerate(VALUES)]
            heartbeat = build_row(NOON, kind=SampleKind.HEARTBEAT)
            days = [build_row(NOON + day * DAY, 5.0) for day in (-2, -1)]
            harness.commit({DEVICE: [*days, *rows, heartbeat, build_stray_row(NOON)], OTHER: days})
        database.close()

    def drop_roles(self) -> None:
        with self.connect() as admin:
            for role in self._roles:
                if admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
                    for clause in ("DROP OWNED BY {}", "DROP ROLE {}"):
                        admin.execute(sql.SQL(clause).format(sql.Identifier(role)))


def _insert_devices(connection: Connection) -> None:
    for number, name in ((DEVICE, "Cold room 3"), (OTHER, "Lobby")):
        connection.execute(device.insert().values(id=number, name=name, name_key=name.lower(), **_DEVICE))
    number = identifier_to_int(IdentifierName(ODD_NAME))
    connection.execute(foreign_name.insert().values(number=number, name=ODD_NAME))


@pytest.fixture
def server(postgresql_server: str, tmp_path: Path) -> Iterator[Server]:
    server = Server(postgresql_server, tmp_path)
    yield server
    server.drop_roles()


def _is_password(stored: str, password: str) -> bool:
    """Return whether a stored SCRAM-SHA-256 hash is that of a password (RFC 5803)."""
    found = re.fullmatch(r"SCRAM-SHA-256\$(\d+):([^$]+)\$([^:]+):.*", stored)
    assert found is not None, stored
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(found[2]), int(found[1]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    return base64.b64decode(found[3]) == hashlib.sha256(key).digest()


def _load_hash(server: Server, role: str) -> str:
    with server.connect() as admin:
        row = admin.execute("SELECT rolpassword FROM pg_authid WHERE rolname = %s", (role,)).fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.rule("rest-229", "rest-230")
def test_a_reader_sees_all_samples_with_a_plausible_time(server: Server) -> None:
    server.write()
    role = server.new_role()
    assert server.grant(role).exit_code == 0
    with server.connect(role) as reader:
        select = (
            "SELECT * FROM meshfleet_read.sample WHERE device = %s AND time >= '2023-11-15Z' ORDER BY time"
        )
        cursor = reader.execute(select.encode(), (MAC,))
        assert [column.name for column in cursor.description or ()] == [
            *("time", "device", "name", "kind", "identifier", "value", "text", "unix_ms")
        ]
        rows = cursor.fetchall()
        assert [row[3:7] for row in rows] == [shown for _, shown in VALUES]
        assert {row[1:3] for row in rows} == {(MAC, "Cold room 3")}
        assert [round(row[0].timestamp() * 1000) for row in rows] == [row[7] for row in rows]
        assert [row[7] for row in rows] == [NOON + i for i in range(len(VALUES))]
        assert reader.execute("SELECT count(*) FROM meshfleet_read.sample").fetchone() == (len(VALUES) + 4,)


_MANY_SAMPLES = """
    INSERT INTO device SELECT id, 'x', 'x', true, 0, 0, '0.0.0', 0, '0.0.0', NULL, NULL, false, 0, 0
        FROM generate_series(1, 200) id;
    INSERT INTO sample_reported (device, time, gateway, identifier, number, kind, seq)
        SELECT id, {noon} - 86400000 + i, 1, 34816, 20, 1, -1
        FROM generate_series(1, 200) id, generate_series(1, 100) i;
    ANALYZE
"""


@pytest.fixture
def reader(server: Server) -> Iterator[psycopg.Connection[Any]]:
    """Connect as a reader of so many samples that the planner uses an index."""
    server.write()
    role = server.new_role()
    assert server.grant(role).exit_code == 0
    with server.connect() as admin:
        admin.execute(_MANY_SAMPLES.format(noon=NOON).encode())
    with server.connect(role) as reader:
        yield reader


@pytest.mark.rule("rest-230")
@each_row(
    "source",
    [
        "meshfleet_read.sample('2023-11-14', '2023-11-15') WHERE true",
        "meshfleet_read.sample(now() - (now() - '2023-11-14Z'), now() - (now() - '2023-11-15Z')) WHERE true",
        f"meshfleet_read.sample WHERE unix_ms BETWEEN {NOON - DAY} AND {NOON - DAY + 5}",
    ],
)
def test_only_the_partitions_of_the_time_range_are_read(reader: psycopg.Connection[Any], source: str) -> None:
    query = f"SELECT value FROM {source} AND device = '{MAC}'"  # noqa: S608 # rows of this test
    plan = "\n".join(line for (line,) in reader.execute(f"EXPLAIN (COSTS OFF) {query}".encode()))
    assert set(re.findall(r"sample_reported_(\d+)", plan)) == {"20231114"}, plan
    assert re.search(r"Index Cond: \(\(device = device.id\) AND \(.time", plan), plan
    assert reader.execute(query.encode()).fetchall() == [(5.0,)]


@pytest.mark.rule("rest-231")
def test_a_hostile_reader_sees_and_changes_nothing_else(server: Server) -> None:
    server.write()
    role = server.new_role()
    assert server.grant(role).exit_code == 0
    with server.connect() as admin:
        tables = [
            *("sample", "sample_reported", "sample_stray", "sample_reported_20231115", "alembic_version"),
            *("meshfleet_read.identifier_name", *metadata.tables),
        ]
        assert {"account", "api_key", "secret", "gateway", "session"} <= set(tables)
        (functions,) = admin.execute(
            "SELECT count(*) FROM pg_proc WHERE prosecdef AND pronamespace::regnamespace::text !~ '^pg_'"
        ).fetchone() or (None,)
        assert functions == 0, "functions that run with the rights of their owner"
    with server.connect(role) as reader:
        reader.execute("SET default_transaction_read_only = off")
        statements = [
            *(f"{verb} FROM {table}" for table in tables for verb in ("SELECT *", "DELETE")),
            *(f"{verb} meshfleet_read.sample" for verb in ("DELETE FROM", "DROP VIEW")),
            "INSERT INTO meshfleet_read.sample (device) VALUES ('x')",
            "UPDATE meshfleet_read.sample SET name = 'x'",
            "CREATE TABLE mine (x int)",
            "CREATE TABLE meshfleet_read.mine (x int)",
            "CREATE SCHEMA mine",
            "CREATE ROLE mine",
            "SET ROLE postgres",
            "SET SESSION AUTHORIZATION postgres",
            "COPY meshfleet_read.sample TO PROGRAM 'cat'",
            "SELECT pg_read_file('/etc/hostname')",
            "SELECT rolpassword FROM pg_authid",
        ]
        for statement in statements:
            with pytest.raises(_REFUSALS):
                reader.execute(statement.encode())
    stranger = server.new_role()
    with server.connect() as admin:
        admin.execute(f"CREATE ROLE {stranger} LOGIN".encode())
    with server.connect(stranger) as other, pytest.raises(errors.InsufficientPrivilege):
        other.execute("SELECT * FROM meshfleet_read.sample(now(), now())")


@pytest.mark.rule("rest-231")
def test_a_password_is_printed_once_and_stored_as_its_hash(server: Server) -> None:
    role = server.new_role()
    created = server.grant(role, "--json")
    first = json.loads(created.stdout)
    assert (first["role"], first["created"], first["readsOther"]) == (role, True, None)
    assert _is_password(_load_hash(server, role), first["password"])
    again = server.grant(role)
    assert again.stdout == f"{role} may read meshfleet_read.sample; its password was not changed.\n"
    assert _is_password(_load_hash(server, role), first["password"])
    renewed = server.grant(role, "--new-password")
    found = re.search(r"with the password (\S+) \(shown only once\)", renewed.stdout)
    assert found is not None
    assert _is_password(_load_hash(server, role), found[1])
    given = server.grant(role, "--stdin", stdin="correct horse 'battery' %s\n")
    assert given.stdout == f"{role} may read meshfleet_read.sample.\n"
    assert _is_password(_load_hash(server, role), "correct horse 'battery' %s")


@each_row(
    ("role", "options", "text"),
    [
        ("Grafana", (), "lowercase"),
        ("public", (), "not public"),
        ("pg_reader", (), "not public"),
        ('x"; DROP TABLE device; --', (), "lowercase"),
        ("r" * 64, (), "1 to 63"),
        ("postgres", (), "is the role of the service itself"),
        ("reader", ("--stdin",), "10 to 1024 characters"),
    ],
)
def test_wrong_roles_are_refused(server: Server, role: str, options: tuple[str, ...], text: str) -> None:
    result = server.grant(role, *options, stdin="short\n")
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert text in result.stderr


def test_an_administrator_keeps_its_password_and_is_pointed_out(server: Server) -> None:
    role = server.new_role()
    with server.connect() as admin:
        admin.execute(f"CREATE ROLE {role} SUPERUSER".encode())
    refused = server.grant(role, "--new-password")
    assert (refused.exit_code, "its password is not changed" in refused.stderr) == (1, True)
    granted = server.grant(role)
    assert granted.exit_code == 0
    assert f"Warning: {role} may also read other tables, such as account." in granted.stderr


def test_with_sqlite_the_command_says_what_to_use(tmp_path: Path) -> None:
    result = run_command("database", "grant-reader", "grafana", "--data", str(tmp_path))
    assert (result.exit_code, "can read samples over REST" in result.stderr) == (2, True)


def _own(server: Server, role: str) -> None:
    """Give all tables to a role that may create neither roles nor schemas, as before this version."""
    with server.connect() as admin:
        admin.execute("DROP SCHEMA meshfleet_read CASCADE")
        admin.execute(f"CREATE ROLE {role} LOGIN".encode())
        admin.execute(f"GRANT ALL ON SCHEMA public TO {role}".encode())
        tables = admin.execute(
            "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p')"
            " AND relnamespace = 'public'::regnamespace"
        ).fetchall()
        for (table,) in tables:
            admin.execute(f"ALTER TABLE {table} OWNER TO {role}".encode())


def test_the_role_of_the_service_needs_few_rights(server: Server) -> None:
    service, role = server.new_role(), server.new_role()
    _own(server, service)
    refused = server.grant(role, user=service)
    assert f'GRANT CREATE ON DATABASE "{server.name}" TO "{service}"' in refused.stderr
    with server.connect() as admin:
        admin.execute(f"GRANT CREATE ON DATABASE {server.name} TO {service}".encode())
    refused = server.grant(role, user=service)
    assert (refused.exit_code, f'CREATE ROLE "{role}" LOGIN' in refused.stderr) == (1, True), refused.stderr
    with server.connect() as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN".encode())
    granted = server.grant(role, user=service)
    assert granted.stdout == f"{role} may read meshfleet_read.sample; its password was not changed.\n"
    with server.connect(role) as reader:
        assert reader.execute("SELECT count(*) FROM meshfleet_read.sample").fetchone() == (0,)


def test_an_administrator_can_create_the_view_for_the_service(server: Server) -> None:
    service, role = server.new_role(), server.new_role()
    _own(server, service)
    assert server.grant(role).exit_code == 0
    with server.connect() as admin:
        owners = admin.execute(
            "SELECT DISTINCT relowner::regrole::text FROM pg_class"
            " WHERE relnamespace = 'meshfleet_read'::regnamespace"
        ).fetchall()
    assert owners == [(service,)]
    refused = server.grant(service, "--new-password")
    assert (refused.exit_code, f"{service} is the role of the service itself" in refused.stderr) == (1, True)


def test_the_view_survives_backup_and_restore(server: Server, postgresql_server: str, tmp_path: Path) -> None:
    server.write()
    role, file = server.new_role(), tmp_path / "backup.tar"
    assert server.grant(role).exit_code == 0
    data = ("--data", str(tmp_path))
    assert run_command("backup", str(file), "--database", server.url, *data).exit_code == 0
    query = (
        b"SELECT time, device, name, kind, identifier, value, text FROM meshfleet_read.sample ORDER BY 1, 5"
    )
    with server.connect(role) as reader:
        expected = reader.execute(query).fetchall()
    restored = create_empty_database(postgresql_server, f"{server.name}_restored")
    result = run_command("restore", str(file), "--database", restored, "--data", str(tmp_path / "restored"))
    assert result.exit_code == 0, result.output
    with psycopg.connect(restored.replace("postgres@", f"{role}@"), autocommit=True) as reader:
        with pytest.raises(errors.InsufficientPrivilege):
            reader.execute(query)  # rights are no part of a backup
        granted = run_command("database", "grant-reader", role, "--database", restored, *data)
        assert granted.exit_code == 0, granted.output
        assert reader.execute(query).fetchall() == expected
    with psycopg.connect(postgresql_server + "/postgres", autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {server.name}_restored WITH (FORCE)".encode())
