"""The files for mosquitto: what is in them, and that mosquitto does with them what they say."""

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
    """A database in the usual folder of the working directory."""
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


def told(*arguments: str, **variables: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(configure("--json", *arguments, **variables).stdout)
    return said


def users(out: Path) -> dict[str, str]:
    lines = (out / "passwords").read_text().splitlines()
    return {user: hashed for user, _, hashed in (line.partition(":") for line in lines)}


def address(out: Path) -> str:
    name, _, value = (out / "meshfleet.env").read_text().strip().partition("=")
    assert name == "MESHFLEET_BROKER"
    return value


# --- What is written ---


def test_the_service_and_all_claimed_gateways_get_in(database: Database, out: Path) -> None:
    claim(database, B)
    claim(database, A)
    configure()
    assert list(users(out)) == ["meshfleet", A, B]
    assert users(out)[A] == database.read_now(store.load_broker_hashes)[A]


def test_gateways_without_a_password_are_told(database: Database, out: Path) -> None:
    claim(database, A)
    database.write_now(register_gateways, {mac_to_int(B)}, 1)
    said = told()
    assert (said["gateways"], said["gatewaysWithoutPassword"]) == ([A], [B])
    assert list(users(out)) == ["meshfleet", A]
    words = configure().stdout
    assert "1 gateway cannot log in" in words
    assert f"  {B}\n" in words
    assert f"  {A}\n" not in words


def test_a_gateway_that_was_claimed_before_there_were_such_hashes_is_told(database: Database) -> None:
    claim(database, A)
    database.write_now(lambda connection: connection.execute(update(gateway).values(broker_hash=None)))
    assert told()["gatewaysWithoutPassword"] == [A]


def test_the_password_of_the_service_is_made_once_and_never_printed(database: Database, out: Path) -> None:
    assert database.is_sqlite
    words = configure().output
    first = address(out)
    words += configure("--json").output
    assert address(out) == first
    scheme, rest = first.split("meshfleet:")
    password, place = rest.split("@")
    assert (scheme, place) == ("mqtt://", "127.0.0.1:1883")
    assert len(password) == 43
    assert password not in words
    assert "mqtt://127.0.0.1:1883" in words
    assert password not in (out / "passwords").read_text()


@each_row(
    ("broker", "written"),
    [
        ("mqtts://[2001:db8::1]:9", "@[2001:db8::1]:9"),
        ("mqtt://other:hush-hush@host", "mqtt://meshfleet:"),
        ("mqtt://other:hush-hush@host", "@host:1883"),
    ],
)
def test_the_address_is_that_of_the_broker_which_is_set(
    database: Database, out: Path, broker: str, written: str
) -> None:
    assert database.is_sqlite
    result = configure("--broker", broker)
    assert written in address(out)
    assert "hush" not in result.output + address(out)


def test_what_it_writes_is_for_the_owner_alone_and_replaced_as_a_whole(database: Database, out: Path) -> None:
    configure()
    assert out.stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in out.iterdir()) == FILES
    assert {each.stat().st_mode & 0o777 for each in out.iterdir()} == {0o600}
    before = {each.name: each.stat().st_ino for each in out.iterdir()}
    with (out / "passwords").open() as held:
        claim(database, A)
        configure()
        assert A not in held.read()
    assert A in users(out)
    assert not {each.stat().st_ino for each in out.iterdir()} & {before["passwords"]}
    assert sorted(each.name for each in out.iterdir()) == FILES


def test_what_it_writes_belongs_to_whom_the_folder_does(database: Database, out: Path) -> None:
    assert database.is_sqlite
    out.mkdir(0o700)
    # Only root can give a folder to another user. Everybody else can give it to another group of theirs.
    user, group = (12345, 12346) if os.geteuid() == 0 else (os.geteuid(), _another_group(out))
    shutil.chown(out, user, group)
    configure()
    assert {(each.stat().st_uid, each.stat().st_gid) for each in out.iterdir()} == {(user, group)}


def _another_group(folder: Path) -> int:
    """A group that we are in and that files of ours do not belong to by themselves."""
    others = set(os.getgroups()) - {os.getegid(), folder.stat().st_gid}
    if not others:
        pytest.skip("only root, or a user with a second group, can give the folder another owner or group")
    return min(others)


def test_the_names_of_its_files_are_absolute(database: Database, tmp_path: Path) -> None:
    assert database.is_sqlite
    configure("--out", "below/there")
    lines = (tmp_path / "below" / "there" / "mosquitto.conf").read_text().splitlines()
    assert f"password_file {tmp_path}/below/there/passwords" in lines
    assert f"acl_file {tmp_path}/below/there/acl" in lines


def test_the_hashes_are_of_the_kind_that_mosquitto_makes_itself(database: Database, out: Path) -> None:
    claim(database, A)
    configure()
    theirs = out / "theirs"
    subprocess.run(
        [require(MOSQUITTO_PASSWD), "-c", "-b", theirs, "somebody", "word"], check=True, capture_output=True
    )
    ((_, made),) = (line.split(":") for line in theirs.read_text().splitlines())
    for hashed in users(out).values():
        assert [len(part) for part in hashed.split("$")] == [len(part) for part in made.split("$")]
        assert hashed.split("$")[:3] == made.split("$")[:3]


# --- What is refused ---


def test_a_folder_that_others_can_read_is_refused(database: Database, out: Path) -> None:
    assert database.is_sqlite
    out.mkdir(0o700)
    out.chmod(0o750)
    result = run_command("broker-config", "mosquitto")
    assert (result.exit_code, "others can read" in result.stderr) == (1, True)
    assert list(out.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_refused(database: Database, out: Path) -> None:
    assert database.is_sqlite
    out.touch()
    result = run_command("broker-config", "mosquitto")
    assert (result.exit_code, "cannot be written: File exists" in result.stderr) == (1, True)


@each_row("prefix", ["a%u", "%c/b", " a"])
def test_a_prefix_that_rules_cannot_spell_is_refused(database: Database, out: Path, prefix: str) -> None:
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
def test_it_tells_how_it_is_used() -> None:
    assert "broker-config" in run_command("--help").stdout
    assert "SIGHUP" in run_command("broker-config", "mosquitto", "--help").stdout
    assert run_command("broker-config", "rabbitmq").exit_code == 2
