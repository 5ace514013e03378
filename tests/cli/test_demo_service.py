"""The demo as a newcomer starts it: a fleet that lives, beside a service that does not depend on it."""

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
from meshfleet.rest import LOGIN_PATH
from tests.cli.programs import TEST_TIMEOUT, Program
from tests.cli.shell import Shell
from tests.eventually import eventually
from tests.servers import free_port

if TYPE_CHECKING:
    from pathlib import Path
    from signal import Signals

PASSWORD = "correct-horse-battery"  # noqa: S105 # of nobody
ALL = sum(each.devices for each in BUILDINGS) + len(BUILDINGS) + 1
EMPTY = 6
"""Devices of the demo that never say a word; so does the gateway that was never heard."""


def serve(folder: Path, *arguments: str) -> Program:
    given = ["serve", "--json", "--http", "127.0.0.1:0", "--data", str(folder / "data"), *arguments]
    return Program(*given, MESHFLEET_ADMIN_PASSWORD=PASSWORD)


class Newcomer:
    """Somebody with a browser, or the like."""

    def __init__(self, program: Program) -> None:
        url = json.loads(program.read_line())["url"]
        self._http = httpx.Client(base_url=url, timeout=TEST_TIMEOUT, verify=False)  # noqa: S501 # on this machine
        login = self._http.post(LOGIN_PATH, json={"username": "admin", "password": PASSWORD})
        token = login.json()["authToken"]
        self._http.headers["Authorization"] = f"Bearer {token}"
        self.variables = {"MESHFLEET_URL": url, "MESHFLEET_TOKEN": token}
        """For the command line."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: str) -> Any:
        return self._http.get(f"/api/v1/{path}", params=query).raise_for_status().json()

    def named(self, name: str) -> Any:
        (found,) = self.get("devices", FriendlyName=name, Include="live")["items"]
        return found

    def connected(self) -> set[str]:
        """The gateways that are connected."""
        return {each["mac"] for each in self.get("gateways")["items"] if each["connected"]}

    def measured(self, device: str) -> list[tuple[str, int]]:
        """Times and numbers of one series, the oldest first; what was before has no numbers."""
        rows = self.get(f"devices/{device}/samples", Identifier="light-intensity")["items"]
        return sorted((each["time"], each["seq"]) for each in rows if each["seq"] is not None)

    def past(self, device: str, until: datetime) -> tuple[Any, Any]:
        """What was measured in the day before, hour by hour, and who heard the device."""
        span = {"From": _spell(until - timedelta(days=1)), "To": _spell(until), "Points": "24"}
        series = self.get(f"devices/{device}/series", Identifier="light-intensity", **span)["items"]
        return series, self.get(f"devices/{device}/links", **span)["items"]

    def next_event(self) -> Any:
        with self._http.stream("GET", "/api/v1/stream", params={"Types": "report"}) as stream:
            line = next(each for each in stream.iter_lines() if each.startswith("data:"))
            return json.loads(line.removeprefix("data:"))

    def rename(self, device: str, name: str) -> None:
        path = f"/api/v1/devices/{device}/friendly-name"
        self._http.put(path, json={"name": name}).raise_for_status()

    def release(self, gateway: str) -> None:
        self._http.delete(f"/api/v1/gateways/{gateway}").raise_for_status()


def _spell(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def ended(program: Program, how: Signals) -> tuple[int, list[str]]:
    """End it: its exit code, and its complaints, but for those of a busy machine."""
    code, _, errors = program.wait_for_exit(how)
    return code, [line for line in errors.splitlines() if "this machine is too slow" not in line]


OFFERED = 5
"""Firmware records that the demo brings."""


def wait_for_more(newcomer: Newcomer, *devices: str) -> None:
    """Wait until samples have come of each."""
    known = {each: len(newcomer.measured(each)) for each in devices}
    eventually(lambda: all(len(newcomer.measured(each)) > known[each] for each in devices))


def is_alive(newcomer: Newcomer) -> bool:
    """Whether everybody is connected who can be."""
    return bool(newcomer.get("devices/summary")["connected"] == ALL - EMPTY - 1)


@pytest.mark.rule("rest-178")
def test_a_newcomer_sees_a_fleet_that_lives(tmp_path: Path) -> None:
    with serve(tmp_path, "--demo") as program, Newcomer(program) as newcomer:
        assert newcomer.next_event()["data"]["gateway"] in {each.gateway for each in BUILDINGS}
        eventually(lambda: is_alive(newcomer))
        assert newcomer.get("devices/summary")["total"] == ALL
        rooms = [newcomer.named(each.second_device_name) for each in BUILDINGS]
        for room, building in zip(rooms, BUILDINGS, strict=True):
            assert building.name in room["labels"]
            assert room["live"]["gateway"] == building.gateway
        wait_for_more(newcomer, *(room["id"] for room in rooms))
        assert newcomer.get("rejects")["items"] == []
        offered = newcomer.get("firmware")["items"]
        assert Counter(each["state"] for each in offered) == {"released": 4, "draft": 1}
        assert ended(program, SIGINT) == (0, [])


def test_a_second_start_goes_on_with_the_same_fleet(tmp_path: Path) -> None:
    # Radio is kept minute by minute: in this one there will be some of the past and some that is live.
    begun = datetime.now(UTC).replace(second=0, microsecond=0)
    with serve(tmp_path, "--demo") as program, Newcomer(program) as newcomer:
        device = newcomer.named(BUILDINGS[0].second_device_name)["id"]
        newcomer.rename(device, "Küche ☕")
        series, links = past = newcomer.past(device, begun)
        assert len(series) == 24
        assert all(each["count"] for each in series)
        assert all(each["series"] for each in links)
        assert newcomer.named("Küche ☕")["live"]["parent"] in {each["parent"] for each in links}
        head, *lines = Shell(tmp_path).text("devices", "links", device, **newcomer.variables).splitlines()
        assert head.split() == ["parent", "rssi", "seen", "mean", "unreachable", "gateway"]
        assert {line.split()[0] for line in lines} >= {each["parent"] for each in links}
        eventually(lambda: len(newcomer.measured(device)) > 1)
        back, *_, first = newcomer.get(f"devices/{device}/connectivity")["items"]
        assert back["connected"]
        assert first["time"] < _spell(begun - timedelta(hours=23))
        assert ended(program, SIGTERM) == (0, [])
    with serve(tmp_path, "--demo") as program, Newcomer(program) as newcomer:
        wait_for_more(newcomer, device)
        assert newcomer.past(device, begun) == past
        assert len(newcomer.get("firmware")["items"]) == OFFERED
        eventually(lambda: is_alive(newcomer))
        assert newcomer.get("devices/summary")["total"] == ALL
        assert newcomer.named("Küche ☕")["id"] == device
        counted = [seq for _, seq in newcomer.measured(device)]
        assert counted == list(range(len(counted)))
        assert ended(program, SIGTERM) == (0, [])


def test_the_demo_comes_in_over_tls_where_there_is_nothing_else_and_stops_without_a_gateway(
    tmp_path: Path,
) -> None:
    mine = trustme.CA().issue_cert("fleet.example.org")
    for each in mine.cert_chain_pems:
        each.write_to_path(tmp_path / "cert.pem")
    mine.private_key_pem.write_to_path(tmp_path / "key.pem")
    given = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with serve(tmp_path, "--demo", *given, "--mqtt", "off", "--mqtt-tls", "127.0.0.1:0") as program:
        with Newcomer(program) as newcomer:
            first, *others = (each.gateway for each in BUILDINGS)
            eventually(lambda: newcomer.connected() == {first, *others})
            newcomer.release(first)  # which keeps nobody from stopping
            eventually(lambda: newcomer.connected() == {*others})
        code, _, errors = program.wait_for_exit(SIGTERM)
    assert code == 0
    assert "Traceback" not in errors


def test_without_a_broker_the_fleet_stands_still_and_says_so(tmp_path: Path) -> None:
    others = {
        "off": (["--mqtt", "off"], "with --mqtt off"),
        "other": (["--broker", f"mqtt://127.0.0.1:{free_port()}"], "--broker names another"),
    }
    for name, (given, reason) in others.items():
        with serve(tmp_path / name, "--demo", *given) as program, Newcomer(program) as newcomer:
            assert newcomer.get("devices/summary")["total"] == ALL
            code, _, errors = program.wait_for_exit(SIGTERM)
        assert code == 0
        assert errors.startswith("The demo stands still: ")
        assert reason in errors.splitlines()[0]


def test_gateways_that_cannot_connect_leave_the_service_alone(tmp_path: Path) -> None:
    with (
        serve(tmp_path, "--demo", "--limits-connections", "1") as program,
        Newcomer(program) as newcomer,
    ):
        eventually(lambda: "\nThe demo stands still: " in program.errors)
        assert newcomer.get("devices/summary")["total"] == ALL
        code, (refused, stands_still) = ended(program, SIGTERM)
    assert code == 0
    assert "(limits.connections)" in refused
    assert stands_still.startswith("The demo stands still: ")
