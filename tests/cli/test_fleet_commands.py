"""Devices, labels, gateways, people, keys and samples from the command line."""

from __future__ import annotations

import csv
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import to_device_id
from tests.cli.shell import Shell, create_logged_in_shell, run_at_terminal
from tests.eventually import eventually
from tests.row_tables import each_row

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.testing import RunningFleet

NEW = "02005e00f001"
"""A gateway of nobody."""

SECRET = re.compile(r"[A-Za-z0-9_-]{20,}")


def ids(found: list[Any]) -> list[str]:
    return [each["id"] for each in found]


@pytest.fixture
def devices(place: RunningFleet) -> list[str]:
    return [to_device_id(mac) for mac in place.gateways[0].devices]


# --- Devices ---


def test_devices_are_listed_for_people_and_for_programs(admin: Shell, devices: list[str]) -> None:
    head, *rows = admin.text("devices", "list").splitlines()
    assert head.split() == ["id", "name", "model", "firmware", "connected", "since", "labels"]
    found = admin.json_lines("devices", "list")
    assert [row.split()[0] for row in rows] == ids(found)
    assert set(devices) < set(ids(found))
    assert found[0].keys() >= {"id", "friendlyName", "modelNumber", "labels", "connectivity", "status"}


def test_filters_are_those_of_the_service(admin: Shell, place: RunningFleet, devices: list[str]) -> None:
    gateway = place.gateways[0].mac
    everything = admin.json_lines("devices", "list")
    chosen = everything[ids(everything).index(devices[0])]  # others may have left a gateway that never came
    for flags in (
        ["--model", chosen["modelNumber"]],
        ["--firmware", chosen["firmwareVersion"]],
        ["--hardware", chosen["hardwareVersion"]],
        ["--name", chosen["friendlyName"].upper()],
        ["--id", chosen["id"].upper().replace("BMAC", "bmac"), "--connected", "--gateway", gateway],
    ):
        found = admin.json_lines("devices", "list", *flags)
        assert chosen["id"] in ids(found)
        assert len(found) < len(everything)
    # What was updated just now may be away for a moment.
    eventually(lambda: not {*devices} & {*ids(admin.json_lines("devices", "list", "--disconnected"))})
    both = ["--id", devices[0], "--id", devices[1]]
    assert ids(admin.json_lines("devices", "list", *both, "--sort", "-id")) == [devices[1], devices[0]]
    assert len(admin.json_lines("devices", "list", "--limit", "3")) == 3


@each_row(
    "arguments",
    [["--limit", "0"], ["--sort", "size"], ["--id", "xyz"], ["--label", ""], ["--gateway", "1"], ["more"]],
)
def test_filters_that_are_none_are_wrong_usage(nobody: Shell, arguments: list[str]) -> None:
    nobody.expect_failure("devices", "list", *arguments, code=2)


def test_a_filter_that_only_the_service_can_judge_is_told_by_its_option(admin: Shell) -> None:
    said = admin.expect_failure("devices", "list", "--model", "model", code=2)
    assert "Invalid value for '--model': " in said
    assert "ModelNumber" not in said


def test_a_device_is_shown_in_all_spellings_of_its_name(admin: Shell, place: RunningFleet) -> None:
    mac = place.gateways[0].devices[0]
    colons = ":".join(re.findall("..", mac.upper()))
    for spelling in (mac, f"bmac-{mac}", f"BMAC-{mac.upper()}", colons):
        assert admin.json("devices", "show", spelling)["id"] == f"bmac-{mac}"
    text = admin.text("devices", "show", mac)
    assert re.search(rf"^live\.gateway +{place.gateways[0].mac}$", text, re.MULTILINE)


def test_a_device_that_is_not_there_is_told(admin: Shell) -> None:
    assert "bmac-020000000000" in admin.expect_failure("devices", "show", "020000000000")


def test_a_device_that_is_not_there_has_no_links(admin: Shell) -> None:
    assert "bmac-020000000000" in admin.expect_failure("devices", "links", "020000000000")


def test_a_device_is_renamed(admin: Shell, devices: list[str]) -> None:
    assert (
        admin.json("devices", "rename", devices[0], "Door [bold]north")["friendlyName"] == "Door [bold]north"
    )
    assert "Door [bold]north" in admin.text("devices", "list", "--id", devices[0])
    assert admin.text("devices", "rename", devices[0], "Door").endswith("is called Door from now on.\n")
    assert "control characters" in admin.expect_failure("devices", "rename", devices[0], "\x1b[2J")


def test_names_do_nothing_to_the_terminal(admin: Shell, devices: list[str]) -> None:
    admin.text("devices", "rename", devices[0], "turned \u2028 around")
    for arguments in (["list"], ["show", devices[0]]):
        text = admin.text("devices", *arguments)
        assert "turned \ufffd around" in text
    assert "\u2028" not in admin.text("devices", "rename", devices[0], "once\u2028again")
    assert "\u2028" not in admin.text("devices", "show", devices[0], "--json")
    assert admin.json("devices", "show", devices[0])["friendlyName"] == "once\u2028again"


# --- Labels ---


def test_labels_come_and_go(admin: Shell, devices: list[str]) -> None:
    labelled = admin.json("devices", "label", devices[0], "2nd floor/north", "ground")
    assert set(labelled["labels"]) >= {"2nd floor/north", "ground"}
    both = ["--label", "2nd floor/north", "--label", "ground"]
    assert ids(admin.json_lines("devices", "list", *both)) == [devices[0]]
    assert "ground" not in admin.json("devices", "unlabel", devices[0], "ground")["labels"]
    assert "does not have this label" in admin.expect_failure("devices", "unlabel", devices[0], "ground")
    assert admin.json("labels", "add", "ground", devices[1], devices[2]) == {
        "label": "ground",
        "deviceCount": 2,
    }
    assert {"label": "ground", "deviceCount": 2} in admin.json_lines("labels", "list")
    assert re.search(r"^ground +2$", admin.text("labels", "list"), re.MULTILINE)
    assert admin.json("labels", "remove", "ground") == {"label": "ground", "removed": True}
    assert "ground" not in admin.text("labels", "list")
    assert admin.expect_failure("labels", "remove", "ground")


def test_many_devices_get_labels_at_once(admin: Shell, devices: list[str]) -> None:
    listed = "".join(f"{each}\n" for each in devices)
    told = admin.json_lines("devices", "label", "-", "all", "of them", stdin=f"{listed}\n")
    assert sorted(ids(told)) == devices
    assert all({"all", "of them"} <= set(each["labels"]) for each in told)
    assert len(admin.text("devices", "unlabel", "-", "of them", stdin=listed).splitlines()) == len(devices)


def test_a_terminal_shows_how_far_many_devices_are(admin: Shell, devices: list[str], tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("".join(f"{each}\n" for each in devices))
    behind = f"< {tmp_path / 'ids'} > {tmp_path / 'answers'}"
    shown, code = run_at_terminal(admin, "devices", "label", "-", "far", behind=behind)
    assert (code, "%" in shown) == (0, True)
    answers = (tmp_path / "answers").read_text()
    assert len(answers.splitlines()) == len(devices)
    assert "\x1b" not in answers


def test_who_is_not_there_keeps_no_other_from_its_labels(admin: Shell, devices: list[str]) -> None:
    result = admin("devices", "label", "-", "some", "--json", stdin=f"020000000000\n{devices[3]}\n")
    assert result.exit_code == 1
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [devices[3]]
    missing, error = result.stderr.splitlines()
    assert missing.startswith("020000000000: ")
    assert error == "Error: 1 of 2 devices could not be changed as asked."


def test_a_label_that_is_missing_keeps_no_other_on_the_device(admin: Shell, devices: list[str]) -> None:
    admin.text("devices", "label", devices[4], "one", "other")
    result = admin("devices", "unlabel", "-", "one", "missing", "other", stdin=f"{devices[4]}\n")
    assert result.exit_code == 1
    assert result.stderr.endswith("Error: 1 of 1 devices could not be changed as asked.\n")
    assert not {"one", "other"} & set(admin.json("devices", "show", devices[4])["labels"])


def test_no_devices_at_all_are_told(admin: Shell) -> None:
    result = admin("devices", "label", "-", "nobody", stdin="\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No devices on standard input.\n"


def test_a_line_that_is_no_device_changes_nothing(admin: Shell, devices: list[str]) -> None:
    assert "xyz" in admin.expect_failure(
        "devices", "label", "-", "none", code=2, stdin=f"{devices[0]}\nxyz\n"
    )
    assert "none" not in admin.text("labels", "list")


# --- Gateways ---


def test_gateways_are_listed(admin: Shell, place: RunningFleet) -> None:
    (gateway,) = admin.json_lines("gateways", "list")
    assert (gateway["mac"], gateway["connected"], gateway["apiVersion"]) == (
        place.gateways[0].mac,
        True,
        "2.4.0",
    )
    assert place.gateways[0].mac in admin.text("gateways", "list")


def test_a_gateway_is_added_gets_another_password_and_is_removed(admin: Shell) -> None:
    claim = admin.json("gateways", "add", "02:00:5E:00:F0:01", "--name", "Attic")
    assert (claim["mac"], claim["username"]) == (NEW, NEW)
    assert claim.keys() == {"mac", "deviceId", "username", "password", "broker"}
    assert admin.expect_failure("gateways", "add", NEW)
    text = admin.text("gateways", "rotate", NEW)
    assert f"mqtt://{claim['broker']['host']}:{claim['broker']['port']}" in text
    assert SECRET.search(text)
    assert claim["password"] not in text
    assert "Attic" in admin.text("gateways", "list")
    assert admin.json("gateways", "remove", f"bmac-{NEW}") == {"mac": NEW, "removed": True}
    assert admin.expect_failure("gateways", "remove", NEW)


# --- People and programs ---


def test_a_person_comes_changes_and_goes(admin: Shell, place: RunningFleet, tmp_path: Path) -> None:
    told = admin.json("users", "add", "BOB", "--role", "viewer")
    assert (told["username"], told["role"]) == ("bob", "viewer")
    bob = Shell(tmp_path / "bob")
    bob.text("login", "--url", place.url, "--user", "bob", "--password", told["password"])
    assert bob.json_lines("devices", "list")
    assert bob.expect_failure("labels", "add", "bob was here")
    assert admin.json("users", "role", "bob", "operator")["role"] == "operator"
    assert [each["username"] for each in admin.json_lines("users", "list")] == ["admin", "bob"]
    assert re.search(r"^bob +operator ", admin.text("users", "list"), re.MULTILINE)
    assert admin.json("users", "remove", "bob") == {"username": "bob", "removed": True}
    assert admin.expect_failure("users", "remove", "bob")
    assert "last" in admin.expect_failure("users", "remove", "admin")


def test_a_password_that_is_asked_for_is_not_shown(admin: Shell, place: RunningFleet, tmp_path: Path) -> None:
    typed = "correct-horse\ncorrect-horse\n"
    result = admin("users", "add", "eve", "--role", "admin", "--ask", "--json", stdin=typed)
    assert json.loads(result.stdout) == {"username": "eve", "role": "admin", "password": None}
    assert "correct-horse" not in result.stderr
    Shell(tmp_path / "eve").text("login", "--url", place.url, "--user", "eve", "--password", "correct-horse")
    admin.text("users", "remove", "eve")


def test_a_key_lets_a_program_in_until_it_is_removed(
    admin: Shell, place: RunningFleet, nobody: Shell
) -> None:
    issued = admin.json("keys", "add", "dashboard", "--role", "viewer", "--expires", "2199-01-01T00:00:00Z")
    assert issued["expiresAt"] == "2199-01-01T00:00:00.000Z"
    script = {"MESHFLEET_URL": place.url, "MESHFLEET_TOKEN": issued["key"]}
    assert nobody.json_lines("devices", "list", **script)
    assert issued["id"] in admin.text("keys", "list")
    assert issued["key"] not in json.dumps(admin.json_lines("keys", "list"))
    assert admin.json("keys", "remove", issued["id"]) == {"id": issued["id"], "removed": True}
    assert "does not take MESHFLEET_TOKEN" in nobody.expect_failure("devices", "list", **script)
    assert issued["id"].startswith("key-")
    assert "API key not found" in admin.expect_failure("keys", "remove", "-vDGDW7oD3ad")
    shown = admin.text("keys", "add", "another", "--role", "viewer")
    assert shown.startswith("another comes with the key ")


def test_roles_that_are_none_are_wrong_usage(nobody: Shell) -> None:
    for arguments in (
        ["users", "add", "bob"],
        ["users", "add", "bob", "--role", "king"],
        ["users", "role", "bob", "king"],
        ["keys", "add", "x", "--role", "king"],
        ["keys", "add", "x", "--role", "viewer", "--expires", "soon"],
    ):
        nobody.expect_failure(*arguments, code=2)


# --- Samples ---


@pytest.fixture
def sensor(admin: Shell, devices: list[str]) -> str:
    """A device that measures the temperature."""
    for each in devices:
        if admin.json_lines("samples", each, "--identifier", "temperature", "--limit", "1"):
            return each
    pytest.fail("nobody measures the temperature")


def test_samples_are_listed_with_units_and_for_programs(admin: Shell, sensor: str) -> None:
    found = admin.json_lines(
        "samples", sensor, "--identifier", "8800", "--kind", "measurement", "--limit", "2"
    )
    assert [each["name"] for each in found] == ["temperature"] * len(found)
    head, row, *_ = admin.text("samples", sensor, "--identifier", "temperature", "--from", "1h").splitlines()
    assert head.split() == ["time", "kind", "identifier", "value", "raw", "seq", "gateway"]
    assert re.search(r" temperature +-?[0-9.]+ °C +[0-9a-f]{4,} ", row)
    assert admin.json_lines("samples", sensor, "--to", "2020-01-01T00:00:00Z") == []
    assert admin.json_lines("samples", sensor, "--from", "1d", "--limit", "1")


def test_samples_come_as_csv_the_oldest_first(admin: Shell, sensor: str) -> None:
    text = admin.text("samples", sensor, "--csv", "--kind", "measurement")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows
    assert {row["kind"] for row in rows} == {"measurement"}
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)


class _Sheet(BaseHTTPRequestHandler):
    """A service whose samples are not harmless."""

    def do_GET(self) -> None:
        """Answer with a sheet, whatever is asked."""
        self.send_response(200)
        self.send_header("Content-Type", "text/csv")
        self.end_headers()
        self.wfile.write(b"value\r\n\x1b[2J\r\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_sheet_does_nothing_to_a_terminal_and_comes_whole_to_programs(nobody: Shell) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sheet) as server, ThreadPoolExecutor() as pool:
        pool.submit(server.serve_forever)
        address = f"http://127.0.0.1:{server.server_port}"
        nobody.write_login(json.dumps({"url": address, "user": "ada", "token": "key"}))
        try:
            assert run_at_terminal(nobody, "samples", NEW, "--csv") == ("value\n\ufffd[2J\n", 0)
            assert nobody.text("samples", NEW, "--csv") == "value\n\x1b[2J\n"
        finally:
            server.shutdown()


def test_samples_of_nobody_and_in_two_forms_are_refused(admin: Shell, sensor: str) -> None:
    assert admin.expect_failure("samples", "020000000000")
    admin.expect_failure("samples", sensor, "--csv", "--json", code=2)
    admin.expect_failure("samples", sensor, "--csv", "--limit", "1", code=2)
    admin.expect_failure("samples", sensor, "--from", "yesterday", code=2)


# --- Terminals ---


def test_a_narrow_terminal_loses_nothing(place: RunningFleet, tmp_path: Path, devices: list[str]) -> None:
    shell = create_logged_in_shell(tmp_path / "home", place)
    for columns in (200, 60, 30):
        shown, code = run_at_terminal(shell, "devices", "list", columns=columns)
        assert code == 0
        assert all(each in shown for each in devices), columns
        assert "…" not in shown


def test_a_pipe_gets_whole_lines_without_colours(admin: Shell, devices: list[str]) -> None:
    admin.text("devices", "rename", devices[0], "long " * 25)
    (row,) = [line for line in admin.text("devices", "list").splitlines() if line.startswith(devices[0])]
    assert ("long " * 25).strip() in row
    assert "\x1b" not in row
