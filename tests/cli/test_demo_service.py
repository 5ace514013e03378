"""`meshfleet serve --demo`: its emulated fleet, and a service that does not depend on it."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Any, Self

import httpx
import pytest
import trustme

from meshfleet.cli.demo_data import BUILDINGS
from meshfleet.rest.paths import LOGIN_PATH
from tests.cli.programs import TEST_TIMEOUT, Program
from tests.cli.shell import Shell
from tests.eventually import eventually
from tests.servers import free_port

if TYPE_CHECKING:
    from pathlib import Path
    from signal import Signals

PASSWORD = "correct-horse-battery"  # noqa: S105 # only for this test
ALL = sum(each.devices for each in BUILDINGS) + len(BUILDINGS) + 1
EMPTY_BATTERIES = 6
"""Devices with empty batteries, which never connect; neither does one of the gateways."""


def serve(folder: Path, *arguments: str) -> Program:
    options = ["--json", "--http", "127.0.0.1:0", "--data", str(folder / "data"), *arguments]
    return Program("serve", *options, MESHFLEET_ADMIN_PASSWORD=PASSWORD)


class RestClient:
    """HTTP client that is logged in as admin."""

    def __init__(self, program: Program) -> None:
        url = json.loads(program.read_line())["url"]
        self._http = httpx.Client(base_url=url, timeout=TEST_TIMEOUT, verify=False)  # noqa: S501 # self-signed certificate on this machine
        login = self._http.post(LOGIN_PATH, json={"username": "admin", "password": PASSWORD})
        token = login.json()["authToken"]
        self._http.headers["Authorization"] = f"Bearer {token}"
        self.variables = {"MESHFLEET_URL": url, "MESHFLEET_TOKEN": token}
        """Environment variables for the command line."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: str) -> Any:
        return self._http.get(f"/api/v1/{path}", params=query).raise_for_status().json()

    def find_device(self, name: str) -> Any:
        (found,) = self.get("devices", FriendlyName=name, Include="live")["items"]
        return found

    def connected_gateways(self) -> set[str]:
        """Return the MACs of the connected gateways."""
        return {each["mac"] for each in self.get("gateways")["items"] if each["connected"]}

    def live_samples(self, device: str) -> list[tuple[str, int]]:
        """Return times and `seq` of one series, oldest first; samples of the history have no `seq`."""
        rows = self.get(f"devices/{device}/samples", Identifier="light-intensity")["items"]
        return sorted((each["time"], each["seq"]) for each in rows if each["seq"] is not None)

    def history(self, device: str, until: datetime) -> tuple[Any, Any]:
        """Return hourly buckets of one series, and the links of the device, of the day before a time."""
        period = {"From": _format_time(until - timedelta(days=1)), "To": _format_time(until), "Points": "24"}
        series = self.get(f"devices/{device}/series", Identifier="light-intensity", **period)["items"]
        return series, self.get(f"devices/{device}/links", **period)["items"]

    def next_event(self) -> Any:
        with self._http.stream("GET", "/api/v1/stream", params={"Types": "report"}) as stream:
            line = next(each for each in stream.iter_lines() if each.startswith("data:"))
            return json.loads(line.removeprefix("data:"))

    def rename(self, device: str, name: str) -> None:
        path = f"/api/v1/devices/{device}/friendly-name"
        self._http.put(path, json={"name": name}).raise_for_status()

    def release(self, gateway: str) -> None:
        self._http.delete(f"/api/v1/gateways/{gateway}").raise_for_status()


def _format_time(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def stop(program: Program, sig: Signals) -> tuple[int, list[str]]:
    """Stop the program by a signal. Return exit code and error lines, without those about a slow machine."""
    code, _, errors = program.wait_for_exit(sig)
    return code, [line for line in errors.splitlines() if "this machine is too slow" not in line]


FIRMWARE_RECORDS = 5
"""Firmware records of the demo."""


def wait_for_more(client: RestClient, *devices: str) -> None:
    """Wait until each device has new samples."""
    counts = {each: len(client.live_samples(each)) for each in devices}
    eventually(lambda: all(len(client.live_samples(each)) > counts[each] for each in devices))


def is_complete(client: RestClient) -> bool:
    """Return whether all devices with a battery are connected."""
    return bool(client.get("devices/summary")["connected"] == ALL - EMPTY_BATTERIES - 1)


@pytest.mark.rule("rest-178")
def test_the_demo_shows_a_running_fleet(tmp_path: Path) -> None:
    with serve(tmp_path, "--demo") as program, RestClient(program) as client:
        assert client.next_event()["data"]["gateway"] in {each.gateway for each in BUILDINGS}
        eventually(lambda: is_complete(client))
        assert client.get("devices/summary")["total"] == ALL
        rooms = [client.find_device(each.second_device_name) for each in BUILDINGS]
        for room, building in zip(rooms, BUILDINGS, strict=True):
            assert building.name in room["labels"]
            assert room["live"]["gateway"] == building.gateway
        wait_for_more(client, *(room["id"] for room in rooms))
        assert client.get("rejects")["items"] == []
        records = client.get("firmware")["items"]
        assert Counter(each["state"] for each in records) == {"released": 4, "draft": 1}
        assert stop(program, SIGINT) == (0, [])


@pytest.mark.part("long")
def test_a_second_start_continues_with_the_same_fleet(tmp_path: Path) -> None:
    # Links are stored per minute: the current minute has readings of the history and live ones.
    start = datetime.now(UTC).replace(second=0, microsecond=0)
    with serve(tmp_path, "--demo") as program, RestClient(program) as client:
        device = client.find_device(BUILDINGS[0].second_device_name)["id"]
        client.rename(device, "Küche ☕")
        series, links = history = client.history(device, start)
        assert len(series) == 24
        assert all(each["count"] for each in series)
        assert all(each["series"] for each in links)
        assert client.find_device("Küche ☕")["live"]["parent"] in {each["parent"] for each in links}
        header, *lines = Shell(tmp_path).text("devices", "links", device, **client.variables).splitlines()
        assert header.split() == ["parent", "rssi", "seen", "mean", "unreachable", "gateway"]
        assert {line.split()[0] for line in lines} >= {each["parent"] for each in links}
        eventually(lambda: len(client.live_samples(device)) > 1)
        latest, *_, first = client.get(f"devices/{device}/connectivity")["items"]
        assert latest["connected"]
        assert first["time"] < _format_time(start - timedelta(hours=23))
        assert stop(program, SIGTERM) == (0, [])
    with serve(tmp_path, "--demo") as program, RestClient(program) as client:
        wait_for_more(client, device)
        assert client.history(device, start) == history
        assert len(client.get("firmware")["items"]) == FIRMWARE_RECORDS
        eventually(lambda: is_complete(client))
        assert client.get("devices/summary")["total"] == ALL
        assert client.find_device("Küche ☕")["id"] == device
        numbers = [seq for _, seq in client.live_samples(device)]
        assert numbers == list(range(len(numbers)))
        assert stop(program, SIGTERM) == (0, [])


def test_the_demo_uses_tls_if_it_must_and_stops_after_a_gateway_was_released(
    tmp_path: Path,
) -> None:
    certificate = trustme.CA().issue_cert("fleet.example.org")
    for each in certificate.cert_chain_pems:
        each.write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    options = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with serve(tmp_path, "--demo", *options, "--mqtt", "off", "--mqtt-tls", "127.0.0.1:0") as program:
        with RestClient(program) as client:
            first, *other_gateways = (each.gateway for each in BUILDINGS)
            eventually(lambda: client.connected_gateways() == {first, *other_gateways})
            client.release(first)  # must not prevent a clean stop
            eventually(lambda: client.connected_gateways() == {*other_gateways})
        code, _, errors = program.wait_for_exit(SIGTERM)
    assert code == 0
    assert "Traceback" not in errors


def test_without_an_embedded_broker_the_gateways_do_not_run_and_a_warning_says_so(tmp_path: Path) -> None:
    cases = {
        "off": (["--mqtt", "off"], "with --mqtt off"),
        "other": (["--broker", f"mqtt://127.0.0.1:{free_port()}"], "--broker names another"),
    }
    for name, (options, reason) in cases.items():
        with serve(tmp_path / name, "--demo", *options) as program, RestClient(program) as client:
            assert client.get("devices/summary")["total"] == ALL
            code, _, errors = program.wait_for_exit(SIGTERM)
        assert code == 0
        assert errors.startswith("The demo's gateways do not run: ")
        assert reason in errors.splitlines()[0]


def test_gateways_that_cannot_connect_do_not_stop_the_service(tmp_path: Path) -> None:
    with (
        serve(tmp_path, "--demo", "--limits-connections", "1") as program,
        RestClient(program) as client,
    ):
        eventually(lambda: "\nThe demo's gateways have stopped: " in program.errors)
        assert client.get("devices/summary")["total"] == ALL
        code, (refused, stopped) = stop(program, SIGTERM)
    assert code == 0
    assert "(limits.connections)" in refused
    assert stopped.startswith("The demo's gateways have stopped: ")
