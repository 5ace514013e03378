"""Options of `meshfleet gateway`, and its errors."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.cli.programs import Program, broker_url, run_command
from tests.external_tools import MOSQUITTO_PASSWD, require
from tests.row_tables import each_row
from tests.servers import Mosquitto, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

MAC = "d0cf5e000001"
FIELDS = ["mac", "model", "name", "floor", "x", "y", "parent"]
HIDDEN = "hunter22"


def gateway(*arguments: str, **variables: str) -> Result:
    return run_command("gateway", *arguments, **variables)


def describe(*arguments: str) -> dict[str, Any]:
    result = gateway("--mac", MAC, "--describe", *arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# --- Options ---


@pytest.mark.rule("gateway-45")
def test_the_help_names_every_option_and_its_default() -> None:
    help_text = re.sub(r"\s+", " ", gateway("--help").output)
    for option in ("broker", "mac", "site", "topic-prefix", "disable-subscribe", "fault", "tls-ca", "json"):
        assert f"--{option}" in help_text
    defaults = {"devices": "10", "mode": "raw", "api-version": "2.4.0", "seed": "1", "speed": "1.0"}
    for option, default in defaults.items():
        pattern = rf"--{option} [^\[]*(\[raw\|decoded\][^\[]*)?\[default: {default}[\];]"
        assert re.search(pattern, help_text), option
    assert "MESHFLEET_BROKER" in help_text


@each_row("spelling", [MAC, "D0CF5E000001", "d0:cf:5e:00:00:01", "D0-CF-5E-00-00-01", "D0:cf:5E:00:00:01"])
def test_a_mac_may_have_any_case_and_separators(spelling: str) -> None:
    result = gateway("--mac", spelling, "--devices", "0", "--describe")
    assert json.loads(result.output) == {"gateway": MAC, "devices": []}


WRONG = [
    (["--mac", ""], "--mac"),
    (["--mac", "d0cf5e00000"], "12 hex digits"),
    (["--mac", "d0cf5e00000g"], "12 hex digits"),
    (["--mac", "ffffffffffff"], "--mac"),  # the address of all gateways
    (["--devices", "-1"], "--devices"),
    (["--devices", "10001"], "--devices"),
    (["--devices", "ten"], "--devices"),
    (["--mode", "RAW!"], "--mode"),
    (["--api-version", "two"], "--api-version"),
    (["--api-version", "1.1.9"], "1.1.9 is not between 1.2.0 and 2.4.0"),
    (["--api-version", "2.4.1"], "2.4.1 is not between 1.2.0 and 2.4.0"),
    (["--seed", "x"], "--seed"),
    (["--speed", "0"], "--speed"),
    (["--speed", "-1"], "--speed"),
    (["--speed", "inf"], "--speed"),
    (["--speed", "nan"], "--speed"),
    (["--site", "no-such-file"], "does not exist"),
    (["--site", "."], "is a directory"),
    (["--topic-prefix", "a/#"], "is not a valid topic prefix"),
    (["--fault", "gremlins=1"], "'gremlins' is not one of loss, delay"),
    (["--fault", "loss"], "is not a number"),
    (["--fault", "loss=1.1"], "fraction from 0 to 1"),
    (["--fault", "loss=nan"], "fraction from 0 to 1"),
    (["--fault", "crash=-1"], "seconds from 0 to 86400"),
    (["--tls-ca", "no-such-file"], "does not exist"),
    (["--broker", "127.0.0.1"], "--broker"),
    (["--broker", "http://127.0.0.1"], "--broker"),
    (["--what"], "No such option"),
]


@each_row(("arguments", "message"), WRONG)
def test_a_wrong_value_is_refused_with_a_message(arguments: list[str], message: str) -> None:
    valid = ["--mac", MAC, "--devices", "0", "--broker", f"mqtt://127.0.0.1:{free_port()}"]
    result = gateway(*valid, *arguments)
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert "Traceback" not in result.output


@each_row("wrong", [["--api-version", "9.9.9"], ["--speed", "nan"], ["--fault", "loss=2"]])
def test_invalid_options_cannot_be_described_either(wrong: list[str]) -> None:
    assert gateway("--mac", MAC, "--describe", *wrong).exit_code == 2


def test_a_missing_mac_or_broker_is_reported() -> None:
    for options, missing in (([], "'--mac'"), (["--mac", MAC], "'--broker'")):
        result = gateway(*options)
        assert (result.exit_code, missing in result.output) == (2, True)


@each_row("url", ["mqtt://ada:{}@host:99999", "mqtt://ada:{}@", "ftp://ada:{}@host", "ada:{}@host"])
def test_an_invalid_broker_url_is_not_repeated(url: str) -> None:
    for variables in ({"MESHFLEET_BROKER": url.format(HIDDEN)}, {}):
        flags = [] if variables else ["--broker", url.format(HIDDEN)]
        result = gateway("--mac", MAC, *flags, **variables)
        assert (result.exit_code, HIDDEN in result.output) == (2, False), result.output


# --- The site ---


@pytest.mark.rule("gateway-44")
def test_describe_prints_the_site_and_runs_nothing() -> None:
    found = describe("--broker", f"mqtt://127.0.0.1:{free_port()}")  # where no broker listens
    assert list(found)[:2] == ["gateway", "devices"]
    assert found["gateway"] == MAC
    assert len(found["devices"]) == 10
    parents = {MAC, None} | {each["mac"] for each in found["devices"] if each["model"] in ("0040", "0043")}
    for device in found["devices"]:
        assert list(device)[:7] == FIELDS
        assert set(device) - set(FIELDS) <= {"access", "publicKey"}
        assert device["parent"] in parents
        assert isinstance(device["floor"], int)
        assert isinstance(device["x"], float)
        assert isinstance(device["y"], float)


@pytest.mark.rule("gateway-41")
def test_the_same_seed_gives_the_same_site_and_another_seed_another_site() -> None:
    assert describe("--seed", "5") == describe("--seed", "5")
    positions = [[(each["x"], each["y"]) for each in describe("--seed", seed)["devices"]] for seed in "56"]
    assert positions[0] != positions[1]
    assert describe() == describe("--seed", "1", "--devices", "10")


@each_row("seed", ["1", "2", "7"])
@each_row("devices", ["1", "10", "60"])
def test_a_described_site_can_be_used_as_site_file(devices: str, seed: str, tmp_path: Path) -> None:
    found = describe("--devices", devices, "--seed", seed)
    file = tmp_path / "site.json"
    file.write_text(json.dumps(found))
    assert describe("--site", str(file), "--seed", seed) == found


def test_all_mistakes_of_a_site_file_are_reported(tmp_path: Path) -> None:
    valid = {"mac": "c00000000002", "model": "0018", "x": 1, "y": 2}
    devices = [valid, {**valid, "x": "far"}, {"mac": "unknown", "model": "9999", "y": 0, "colour": "red"}]
    file = tmp_path / "site.json"
    file.write_text(json.dumps({"gateway": "d0cf5e000002", "devices": devices, "walls": {"z": []}}))
    result = gateway("--mac", MAC, "--site", str(file), "--describe")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    for field in (
        "gateway",
        "walls.z",
        "devices[1].mac",
        "devices[1].x",
        "devices[2].mac",
        "devices[2].model",
        "devices[2].x",
        "devices[2].colour",
    ):
        assert any(f"site.json: {field}: " in line for line in lines), field
    assert len(lines) == 8


@each_row("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"null", b'{"devices": 1}'])
def test_an_invalid_site_file_is_refused_with_a_message(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "site.json"
    file.write_bytes(content)
    result = gateway("--mac", MAC, "--site", str(file), "--describe")
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)
    assert result.output.startswith(f"Error: {file}: ")


def test_a_site_file_excludes_a_number_of_devices(tmp_path: Path) -> None:
    file = tmp_path / "site.json"
    file.write_text('{"devices": []}')
    result = gateway("--mac", MAC, "--site", str(file), "--devices", "10", "--describe")
    assert (result.exit_code, "exclude each other" in result.output) == (2, True)


@pytest.mark.rule("gateway-48", "gateway-49", "gateway-50", "gateway-51")
def test_the_options_for_positioning_change_the_site() -> None:
    found = describe(
        *("--site-kind", "building", "--anchors", "5", "--anchor-gains", "0", "--devices", "4"),
        *("--walkers", "2", "--survey", "6", "--receivers", "30", "--interval", "1.5"),
    )
    assert [each["floor"] for each in found["floors"]] == [0, 1, 2]
    assert (found["receivers"], found["interval"]) == (30, 1.5)
    assert [each["model"] for each in found["devices"]].count("0040") == 15
    assert not any("gain" in each for each in found["devices"])
    assert [each["walk"] for each in found["devices"] if "walk" in each] == [
        {"speed": 0.8, "pause": 20.0}
    ] * 2
    ((survey),) = [each["survey"] for each in found["devices"] if "survey" in each]
    assert (len(survey["points"]), survey["seconds"]) == (6, 60.0)
    assert sum("gain" in each for each in describe("--site-kind", "hall")["devices"]) >= 10


@each_row(
    ("arguments", "message"),
    [
        (["--anchors", "3"], "need --site-kind"),
        (["--anchor-gains", "3"], "need --site-kind"),
        (["--site-kind", "castle"], "'castle' is not one of 'hall', 'offices', 'building'"),
        (["--site-kind", "building", "--anchors", "500", "--devices", "9000"], "at most 10000 devices"),
        (["--devices", "0", "--survey", "3"], "no device that can be carried"),
        (["--receivers", "5"], "6<=x<=100"),
        (["--receivers", "101"], "6<=x<=100"),
        (["--interval", "nan"], "--interval"),
        (["--survey", "0"], "--survey"),
        (["--site", "FILE", "--walkers", "1"], "--walkers and --site exclude each other"),
        (["--site", "FILE", "--site-kind", "hall"], "--site-kind and --site exclude each other"),
        (
            ["--truth", "no-such-folder/file", "--broker", "mqtt://127.0.0.1:1"],
            "no-such-folder/file cannot be used",
        ),
    ],
)
def test_wrong_options_for_positioning_are_refused(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "site.json"
    file.write_text('{"devices": []}')
    result = gateway("--mac", MAC, *(str(file) if each == "FILE" else each for each in arguments))
    assert (result.exit_code != 0, message in result.output) == (True, True), result.output
    assert "Traceback" not in result.output


# --- Errors ---


def assert_fails(result: Result, pattern: str) -> None:
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    (line,) = result.output.splitlines()
    assert re.search(pattern, line), line
    assert HIDDEN not in line


def test_an_unreachable_broker_is_an_error_of_one_line() -> None:
    address = f"mqtt://ada:{HIDDEN}@127.0.0.1:{free_port()}"
    assert_fails(gateway("--mac", MAC, "--broker", address), "Connection refused")
    assert_fails(gateway("--mac", MAC, MESHFLEET_BROKER=address), "Connection refused")


def test_a_wrong_broker_password_is_an_error_of_one_line(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    subprocess.run(
        [require(MOSQUITTO_PASSWD), "-c", "-b", file, MAC, "right"], check=True, capture_output=True
    )
    with Mosquitto(tmp_path, f"password_file {file}") as broker:
        result = gateway("--mac", MAC, "--broker", broker_url(broker, user=f"{MAC}:{HIDDEN}"))
    assert_fails(result, r"mqtt://127\.0\.0\.1")


@pytest.mark.rule("gateway-7")
def test_the_broker_certificate_is_checked_against_the_trusted_authorities(tmp_path: Path) -> None:
    good, bad = trustme.CA(), trustme.CA()
    file = tmp_path / "server.pem"
    good.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(file))
    for name, authority in (("good", good), ("bad", bad)):
        authority.cert_pem.write_to_path(str(tmp_path / name))
    with Mosquitto(tmp_path, f"certfile {file}", f"keyfile {file}") as secure:
        options = ["--mac", MAC, "--broker", broker_url(secure, scheme="mqtts"), "--devices", "0"]
        assert_fails(gateway(*options), "certificate")
        assert_fails(gateway(*options, "--tls-ca", str(tmp_path / "bad")), "certificate")
        assert_fails(gateway(*options, "--tls-ca", str(tmp_path / "mosquitto.conf")), "certificate")
        with Program("gateway", *options, "--tls-ca", str(tmp_path / "good")) as program:
            assert "is connected" in program.read_line()


@each_row("content", [b"", b"{", b"[]", b"\xff", b"{}", b"[" * 100_000])
def test_an_invalid_state_file_is_refused_and_unchanged(content: bytes, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(content)
    result = gateway("--mac", MAC, "--broker", f"mqtt://127.0.0.1:{free_port()}", "--state", str(state))
    assert_fails(result, rf"^Error: the state file {state} cannot be used: ")
    assert state.read_bytes() == content


def test_a_state_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    state = tmp_path / "nowhere" / "state.json"
    result = gateway("--mac", MAC, "--broker", f"mqtt://127.0.0.1:{free_port()}", "--state", str(state))
    assert_fails(result, "cannot be used")
