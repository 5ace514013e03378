"""Commands for devices, labels, gateways, users, API keys and samples."""

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

UNCLAIMED = "02005e00f001"
"""MAC of a gateway that is not claimed."""

SECRET = re.compile(r"[A-Za-z0-9_-]{20,}")


def ids(found: list[Any]) -> list[str]:
    return [each["id"] for each in found]


@pytest.fixture
def devices(service: RunningFleet) -> list[str]:
    return [to_device_id(mac) for mac in service.gateways[0].devices]


# --- Devices ---


def test_devices_are_listed_as_a_table_and_as_json(admin: Shell, devices: list[str]) -> None:
    header, *rows = admin.text("devices", "list").splitlines()
    assert header.split() == ["id", "name", "model", "firmware", "connected", "since", "labels"]
    found = admin.json_lines("devices", "list")
    assert [row.split()[0] for row in rows] == ids(found)
    assert set(devices) < set(ids(found))
    assert found[0].keys() >= {"id", "friendlyName", "modelNumber", "labels", "connectivity", "status"}


def test_filters_are_those_of_the_service(admin: Shell, service: RunningFleet, devices: list[str]) -> None:
    gateway = service.gateways[0].mac
    all_devices = admin.json_lines("devices", "list")
    device = all_devices[
        ids(all_devices).index(devices[0])
    ]  # other tests may have left a gateway that never connected
    for flags in (
        ["--model", device["modelNumber"]],
        ["--firmware", device["firmwareVersion"]],
        ["--hardware", device["hardwareVersion"]],
        ["--name", device["friendlyName"].upper()],
        ["--id", device["id"].upper().replace("BMAC", "bmac"), "--connected", "--gateway", gateway],
    ):
        found = admin.json_lines("devices", "list", *flags)
        assert device["id"] in ids(found)
        assert len(found) < len(all_devices)
    # A device that was just updated may be disconnected for a moment.
    eventually(lambda: not {*devices} & {*ids(admin.json_lines("devices", "list", "--disconnected"))})
    both = ["--id", devices[0], "--id", devices[1]]
    assert ids(admin.json_lines("devices", "list", *both, "--sort", "-id")) == [devices[1], devices[0]]
    assert len(admin.json_lines("devices", "list", "--limit", "3")) == 3


@each_row(
    "arguments",
    [["--limit", "0"], ["--sort", "size"], ["--id", "xyz"], ["--label", ""], ["--gateway", "1"], ["more"]],
)
def test_invalid_filters_are_wrong_usage(logged_out: Shell, arguments: list[str]) -> None:
    logged_out.expect_failure("devices", "list", *arguments, code=2)


def test_a_value_rejected_by_the_service_is_reported_with_its_option(admin: Shell) -> None:
    message = admin.expect_failure("devices", "list", "--model", "model", code=2)
    assert "Invalid value for '--model': " in message
    assert "ModelNumber" not in message


def test_a_device_is_found_by_all_spellings_of_its_address(admin: Shell, service: RunningFleet) -> None:
    mac = service.gateways[0].devices[0]
    colons = ":".join(re.findall("..", mac.upper()))
    for spelling in (mac, f"bmac-{mac}", f"BMAC-{mac.upper()}", colons):
        assert admin.json("devices", "show", spelling)["id"] == f"bmac-{mac}"
    text = admin.text("devices", "show", mac)
    assert re.search(rf"^live\.gateway +{service.gateways[0].mac}$", text, re.MULTILINE)


def test_an_unknown_device_is_reported(admin: Shell) -> None:
    assert "bmac-020000000000" in admin.expect_failure("devices", "show", "020000000000")


def test_links_of_an_unknown_device_are_an_error(admin: Shell) -> None:
    assert "bmac-020000000000" in admin.expect_failure("devices", "links", "020000000000")


def test_a_device_is_renamed(admin: Shell, devices: list[str]) -> None:
    assert (
        admin.json("devices", "rename", devices[0], "Door [bold]north")["friendlyName"] == "Door [bold]north"
    )
    assert "Door [bold]north" in admin.text("devices", "list", "--id", devices[0])
    assert admin.text("devices", "rename", devices[0], "Door").endswith("is now called Door.\n")
    assert "control characters" in admin.expect_failure("devices", "rename", devices[0], "\x1b[2J")


def test_names_cannot_control_the_terminal(admin: Shell, devices: list[str]) -> None:
    admin.text("devices", "rename", devices[0], "turned \u2028 around")
    for arguments in (["list"], ["show", devices[0]]):
        text = admin.text("devices", *arguments)
        assert "turned \ufffd around" in text
    assert "\u2028" not in admin.text("devices", "rename", devices[0], "once\u2028again")
    assert "\u2028" not in admin.text("devices", "show", devices[0], "--json")
    assert admin.json("devices", "show", devices[0])["friendlyName"] == "once\u2028again"


# --- Labels ---


def test_labels_are_attached_and_detached(admin: Shell, devices: list[str]) -> None:
    labeled = admin.json("devices", "label", devices[0], "2nd floor/north", "ground")
    assert set(labeled["labels"]) >= {"2nd floor/north", "ground"}
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


def test_many_devices_are_labeled_from_standard_input(admin: Shell, devices: list[str]) -> None:
    listed = "".join(f"{each}\n" for each in devices)
    labeled = admin.json_lines("devices", "label", "-", "all", "of them", stdin=f"{listed}\n")
    assert sorted(ids(labeled)) == devices
    assert all({"all", "of them"} <= set(each["labels"]) for each in labeled)
    assert len(admin.text("devices", "unlabel", "-", "of them", stdin=listed).splitlines()) == len(devices)


def test_a_terminal_shows_the_progress_of_labeling(admin: Shell, devices: list[str], tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("".join(f"{each}\n" for each in devices))
    behind = f"< {tmp_path / 'ids'} > {tmp_path / 'output'}"
    shown, code = run_at_terminal(admin, "devices", "label", "-", "far", behind=behind)
    assert (code, "%" in shown) == (0, True)
    output = (tmp_path / "output").read_text()
    assert len(output.splitlines()) == len(devices)
    assert "\x1b" not in output


def test_an_unknown_device_does_not_stop_the_labeling_of_others(admin: Shell, devices: list[str]) -> None:
    result = admin("devices", "label", "-", "some", "--json", stdin=f"020000000000\n{devices[3]}\n")
    assert result.exit_code == 1
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [devices[3]]
    missing, error = result.stderr.splitlines()
    assert missing.startswith("020000000000: ")
    assert error == "Error: 1 of 2 devices could not be changed."


def test_a_missing_label_does_not_stop_the_removal_of_others(admin: Shell, devices: list[str]) -> None:
    admin.text("devices", "label", devices[4], "one", "other")
    result = admin("devices", "unlabel", "-", "one", "missing", "other", stdin=f"{devices[4]}\n")
    assert result.exit_code == 1
    assert result.stderr.endswith("Error: 1 of 1 devices could not be changed.\n")
    assert not {"one", "other"} & set(admin.json("devices", "show", devices[4])["labels"])


def test_empty_standard_input_is_reported(admin: Shell) -> None:
    result = admin("devices", "label", "-", "unused", stdin="\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No devices on standard input.\n"


def test_a_malformed_line_changes_no_device(admin: Shell, devices: list[str]) -> None:
    assert "xyz" in admin.expect_failure(
        "devices", "label", "-", "none", code=2, stdin=f"{devices[0]}\nxyz\n"
    )
    assert "none" not in admin.text("labels", "list")


# --- Gateways ---


def test_gateways_are_listed(admin: Shell, service: RunningFleet) -> None:
    (gateway,) = admin.json_lines("gateways", "list")
    assert (gateway["mac"], gateway["connected"], gateway["apiVersion"]) == (
        service.gateways[0].mac,
        True,
        "2.4.0",
    )
    assert service.gateways[0].mac in admin.text("gateways", "list")


def test_a_gateway_is_claimed_rotated_and_released(admin: Shell) -> None:
    claim = admin.json("gateways", "add", "02:00:5E:00:F0:01", "--name", "Attic")
    assert (claim["mac"], claim["username"]) == (UNCLAIMED, UNCLAIMED)
    assert claim.keys() == {"mac", "deviceId", "username", "password", "broker"}
    assert admin.expect_failure("gateways", "add", UNCLAIMED)
    text = admin.text("gateways", "rotate", UNCLAIMED)
    assert f"mqtt://{claim['broker']['host']}:{claim['broker']['port']}" in text
    assert SECRET.search(text)
    assert claim["password"] not in text
    assert "Attic" in admin.text("gateways", "list")
    assert admin.json("gateways", "remove", f"bmac-{UNCLAIMED}") == {"mac": UNCLAIMED, "removed": True}
    assert admin.expect_failure("gateways", "remove", UNCLAIMED)


# --- Users and API keys ---


def test_a_user_is_created_changed_and_deleted(admin: Shell, service: RunningFleet, tmp_path: Path) -> None:
    created = admin.json("users", "add", "BOB", "--role", "viewer")
    assert (created["username"], created["role"]) == ("bob", "viewer")
    bob = Shell(tmp_path / "bob")
    bob.text("login", "--url", service.url, "--user", "bob", "--password", created["password"])
    assert bob.json_lines("devices", "list")
    assert bob.expect_failure("labels", "add", "bob was here")
    assert admin.json("users", "role", "bob", "operator")["role"] == "operator"
    assert [each["username"] for each in admin.json_lines("users", "list")] == ["admin", "bob"]
    assert re.search(r"^bob +operator ", admin.text("users", "list"), re.MULTILINE)
    assert admin.json("users", "remove", "bob") == {"username": "bob", "removed": True}
    assert admin.expect_failure("users", "remove", "bob")
    assert "last" in admin.expect_failure("users", "remove", "admin")


def test_a_prompted_password_is_not_shown(admin: Shell, service: RunningFleet, tmp_path: Path) -> None:
    typed = "correct-horse\ncorrect-horse\n"
    result = admin("users", "add", "eve", "--role", "admin", "--ask", "--json", stdin=typed)
    assert json.loads(result.stdout) == {"username": "eve", "role": "admin", "password": None}
    assert "correct-horse" not in result.stderr
    Shell(tmp_path / "eve").text(
        "login", "--url", service.url, "--user", "eve", "--password", "correct-horse"
    )
    admin.text("users", "remove", "eve")


def test_an_api_key_works_until_it_is_revoked(admin: Shell, service: RunningFleet, logged_out: Shell) -> None:
    issued = admin.json("keys", "add", "dashboard", "--role", "viewer", "--expires", "2199-01-01T00:00:00Z")
    assert issued["expiresAt"] == "2199-01-01T00:00:00.000Z"
    script = {"MESHFLEET_URL": service.url, "MESHFLEET_TOKEN": issued["key"]}
    assert logged_out.json_lines("devices", "list", **script)
    assert issued["id"] in admin.text("keys", "list")
    assert issued["key"] not in json.dumps(admin.json_lines("keys", "list"))
    assert admin.json("keys", "remove", issued["id"]) == {"id": issued["id"], "removed": True}
    assert "rejects MESHFLEET_TOKEN" in logged_out.expect_failure("devices", "list", **script)
    assert issued["id"].startswith("key-")
    assert "API key not found" in admin.expect_failure("keys", "remove", "-vDGDW7oD3ad")
    home = admin.json("keys", "add", "home", "--role", "viewer", "--for", "homeassistant")
    assert home["kind"] == "homeassistant"
    script["MESHFLEET_TOKEN"] = home["key"]
    assert "rejects MESHFLEET_TOKEN" in logged_out.expect_failure("devices", "list", **script)
    shown = admin.text("keys", "add", "another", "--role", "viewer")
    assert shown.startswith("The API key of another is ")


def test_invalid_roles_and_times_are_wrong_usage(logged_out: Shell) -> None:
    for arguments in (
        ["users", "add", "bob"],
        ["users", "add", "bob", "--role", "king"],
        ["users", "role", "bob", "king"],
        ["keys", "add", "x", "--role", "king"],
        ["keys", "add", "x", "--role", "viewer", "--expires", "soon"],
    ):
        logged_out.expect_failure(*arguments, code=2)


# --- Samples ---


@pytest.fixture
def sensor(admin: Shell, devices: list[str]) -> str:
    """Return a device that measures the temperature."""
    for each in devices:
        if admin.json_lines("samples", each, "--identifier", "temperature", "--limit", "1"):
            return each
    pytest.fail("no device measures the temperature")


def test_samples_are_listed_with_units_and_as_json(admin: Shell, sensor: str) -> None:
    found = admin.json_lines(
        "samples", sensor, "--identifier", "8800", "--kind", "measurement", "--limit", "2"
    )
    assert [each["name"] for each in found] == ["temperature"] * len(found)
    header, row, *_ = admin.text(
        "samples", sensor, "--identifier", "temperature", "--from", "1h"
    ).splitlines()
    assert header.split() == ["time", "kind", "identifier", "value", "raw", "seq", "gateway"]
    assert re.search(r" temperature +-?[0-9.]+ °C +[0-9a-f]{4,} ", row)
    assert admin.json_lines("samples", sensor, "--to", "2020-01-01T00:00:00Z") == []
    assert admin.json_lines("samples", sensor, "--from", "1d", "--limit", "1")


def test_samples_are_exported_as_csv_oldest_first(admin: Shell, sensor: str) -> None:
    text = admin.text("samples", sensor, "--csv", "--kind", "measurement")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows
    assert {row["kind"] for row in rows} == {"measurement"}
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)


class _CsvHandler(BaseHTTPRequestHandler):
    """Handler of a service whose CSV contains control characters."""

    def do_GET(self) -> None:
        """Respond to every request with a CSV file."""
        self.send_response(200)
        self.send_header("Content-Type", "text/csv")
        self.end_headers()
        self.wfile.write(b"value\r\n\x1b[2J\r\n")

    def log_message(self, *_: object) -> None:
        """Suppress the log."""


def test_csv_cannot_control_the_terminal(logged_out: Shell) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _CsvHandler) as server, ThreadPoolExecutor() as pool:
        pool.submit(server.serve_forever)
        address = f"http://127.0.0.1:{server.server_port}"
        logged_out.write_login(json.dumps({"url": address, "user": "ada", "token": "key"}))
        try:
            assert run_at_terminal(logged_out, "samples", UNCLAIMED, "--csv") == ("value\n\ufffd[2J\n", 0)
            assert logged_out.text("samples", UNCLAIMED, "--csv") == "value\n\x1b[2J\n"
        finally:
            server.shutdown()


def test_an_unknown_device_and_conflicting_options_are_refused(admin: Shell, sensor: str) -> None:
    assert admin.expect_failure("samples", "020000000000")
    admin.expect_failure("samples", sensor, "--csv", "--json", code=2)
    admin.expect_failure("samples", sensor, "--csv", "--limit", "1", code=2)
    admin.expect_failure("samples", sensor, "--from", "yesterday", code=2)


# --- Terminals ---


def test_a_narrow_terminal_cuts_nothing_off(
    service: RunningFleet, tmp_path: Path, devices: list[str]
) -> None:
    shell = create_logged_in_shell(tmp_path / "home", service)
    for columns in (200, 60, 30):
        shown, code = run_at_terminal(shell, "devices", "list", columns=columns)
        assert code == 0
        assert all(each in shown for each in devices), columns
        assert "…" not in shown


def test_a_pipe_gets_whole_lines_without_colors(admin: Shell, devices: list[str]) -> None:
    admin.text("devices", "rename", devices[0], "long " * 25)
    (row,) = [line for line in admin.text("devices", "list").splitlines() if line.startswith(devices[0])]
    assert ("long " * 25).strip() in row
    assert "\x1b" not in row
