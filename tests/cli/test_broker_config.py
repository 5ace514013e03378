"""`meshfleet broker-config mosquitto`: the files it writes, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from meshfleet.db import Database
from meshfleet.db import sqlite as in_file
from meshfleet.db.tables import gateway
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.gateways import store
from meshfleet.service.ingest.gateway_admission import register_gateways
from tests.cli.programs import run_command
from tests.external_tools import MOSQUITTO_PASSWD, require
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result


A, B = Mac("02005e000001"), Mac("02005e00000b")
FILES = ["acl", "meshfleet.env", "mosquitto.conf", "passwords"]


@pytest.fixture
def database(sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Create a database in the default data directory, below the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "meshfleet-data"
    folder.mkdir(0o700)
    shutil.copy(sqlite_template, folder)
    with closing(Database(in_file.create_sqlite_engines(folder / "meshfleet.sqlite"))) as database:
        yield database


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "meshfleet-mosquitto"


def claim(database: Database, mac: Mac) -> str:
    return database.write_now(store.claim_gateway, mac, name=None, by=COMMAND_LINE, now=1)


def configure(*arguments: str, **variables: str) -> Result:
    result = run_command("broker-config", "mosquitto", *arguments, **variables)
    assert result.exit_code == 0, result.output
    return result


def configure_json(*arguments: str, **variables: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(configure("--json", *arguments, **variables).stdout)
    return summary


def read_users(out: Path) -> dict[str, str]:
    lines = (out / "passwords").read_text().splitlines()
    return {user: hashed for user, _, hashed in (line.partition(":") for line in lines)}


def read_address(out: Path) -> str:
    name, _, value = (out / "meshfleet.env").read_text().strip().partition("=")
    assert name == "MESHFLEET_BROKER"
    return value


# --- Written files ---


def test_the_service_and_all_claimed_gateways_get_accounts(database: Database, out: Path) -> None:
    claim(database, B)
    claim(database, A)
    configure()
    assert list(read_users(out)) == ["meshfleet", A, B]
    assert read_users(out)[A] == database.read_now(store.load_broker_hashes)[A]


def test_gateways_without_a_password_are_listed(database: Database, out: Path) -> None:
    claim(database, A)
    database.write_now(register_gateways, {mac_to_int(B)}, 1)
    summary = configure_json()
    assert (summary["gateways"], summary["gatewaysWithoutPassword"]) == ([A], [B])
    assert list(read_users(out)) == ["meshfleet", A]
    output = configure().stdout
    assert "1 gateway cannot log in" in output
    assert f"  {B}\n" in output
    assert f"  {A}\n" not in output


def test_a_gateway_without_a_stored_hash_is_listed(database: Database) -> None:
    claim(database, A)
    database.write_now(lambda connection: connection.execute(update(gateway).values(broker_hash=None)))
    assert configure_json()["gatewaysWithoutPassword"] == [A]


def test_the_password_of_the_service_is_generated_once_and_never_printed(
    database: Database, out: Path
) -> None:
    assert database.is_sqlite
    output = configure().output
    first = read_address(out)
    output += configure("--json").output
    assert read_address(out) == first
    scheme, rest = first.split("meshfleet:")
    password, host_and_port = rest.split("@")
    assert (scheme, host_and_port) == ("mqtt://", "127.0.0.1:1883")
    assert len(password) == 43
    assert password not in output
    assert "mqtt://127.0.0.1:1883" in output
    assert password not in (out / "passwords").read_text()


@each_row(
    ("broker", "written"),
    [
        ("mqtts://[2001:db8::1]:9", "@[2001:db8::1]:9"),
        ("mqtt://other:hush-hush@host", "mqtt://meshfleet:"),
        ("mqtt://other:hush-hush@host", "@host:1883"),
    ],
)
def test_the_address_is_that_of_the_configured_broker(
    database: Database, out: Path, broker: str, written: str
) -> None:
    assert database.is_sqlite
    result = configure("--broker", broker)
    assert written in read_address(out)
    assert "hush" not in result.output + read_address(out)


def test_files_are_readable_by_their_owner_only_and_replaced_atomically(
    database: Database, out: Path
) -> None:
    configure()
    assert out.stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in out.iterdir()) == FILES
    assert {each.stat().st_mode & 0o777 for each in out.iterdir()} == {0o600}
    before = {each.name: each.stat().st_ino for each in out.iterdir()}
    with (out / "passwords").open() as old_file:
        claim(database, A)
        configure()
        assert A not in old_file.read()
    assert A in read_users(out)
    assert not {each.stat().st_ino for each in out.iterdir()} & {before["passwords"]}
    assert sorted(each.name for each in out.iterdir()) == FILES


def test_files_belong_to_the_owner_of_the_directory(database: Database, out: Path) -> None:
    assert database.is_sqlite
    out.mkdir(0o700)
    # Only root can give a directory to another user; other users can give it to another of their groups.
    user, group = (12345, 12346) if os.geteuid() == 0 else (os.geteuid(), _find_other_group(out))
    shutil.chown(out, user, group)
    configure()
    assert {(each.stat().st_uid, each.stat().st_gid) for each in out.iterdir()} == {(user, group)}


def _find_other_group(folder: Path) -> int:
    """Return a group of this user that new files do not belong to by default, or skip the test."""
    others = set(os.getgroups()) - {os.getegid(), folder.stat().st_gid}
    if not others:
        pytest.skip("only root, or a user with a second group, can give the directory another owner or group")
    return min(others)


def test_paths_in_the_configuration_are_absolute(database: Database, tmp_path: Path) -> None:
    assert database.is_sqlite
    configure("--out", "below/there")
    lines = (tmp_path / "below" / "there" / "mosquitto.conf").read_text().splitlines()
    assert f"password_file {tmp_path}/below/there/passwords" in lines
    assert f"acl_file {tmp_path}/below/there/acl" in lines


def test_hashes_have_the_format_of_mosquitto_passwd(database: Database, out: Path) -> None:
    claim(database, A)
    configure()
    theirs = out / "theirs"
    subprocess.run(
        [require(MOSQUITTO_PASSWD), "-c", "-b", theirs, "user", "secret"], check=True, capture_output=True
    )
    ((_, reference),) = (line.split(":") for line in theirs.read_text().splitlines())
    for hashed in read_users(out).values():
        assert [len(part) for part in hashed.split("$")] == [len(part) for part in reference.split("$")]
        assert hashed.split("$")[:3] == reference.split("$")[:3]


# --- Refusals ---


def test_a_directory_that_other_users_can_access_is_refused(database: Database, out: Path) -> None:
    assert database.is_sqlite
    out.mkdir(0o700)
    out.chmod(0o750)
    result = run_command("broker-config", "mosquitto")
    assert (result.exit_code, "other users can access" in result.stderr) == (1, True)
    assert list(out.iterdir()) == []


def test_a_file_in_place_of_the_directory_is_refused(database: Database, out: Path) -> None:
    assert database.is_sqlite
    out.touch()
    result = run_command("broker-config", "mosquitto")
    assert (result.exit_code, "cannot be written: File exists" in result.stderr) == (1, True)


@each_row("prefix", ["a%u", "%c/b", " a"])
def test_a_prefix_that_acl_rules_cannot_express_is_refused(
    database: Database, out: Path, prefix: str
) -> None:
    assert database.is_sqlite
    result = run_command("broker-config", "mosquitto", "--topic-prefix", prefix)
    assert (result.exit_code, "topic-prefix: must not contain %u or %c" in result.stderr) == (1, True)
    assert not out.exists()


def test_without_a_database_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_command("broker-config", "mosquitto")
    assert (result.exit_code, "there is no database" in result.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule("rest-176", "rest-177")
def test_the_help_explains_the_command() -> None:
    assert "broker-config" in run_command("--help").stdout
    assert "SIGHUP" in run_command("broker-config", "mosquitto", "--help").stdout
    assert run_command("broker-config", "rabbitmq").exit_code == 2
