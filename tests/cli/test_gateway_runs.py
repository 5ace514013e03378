"""`meshfleet gateway` on a real broker: its options take effect."""

from __future__ import annotations

import json
import re
import subprocess
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import parse_time
from tests.cli.programs import (
    MESHFLEET,
    TEST_TIMEOUT,
    PahoListener,
    Program,
    broker_url,
    run_command,
    wait_for_log,
)
from tests.external_tools import BASH, require
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAC = "d0cf5e000001"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[Mosquitto]:
    with Mosquitto(folder, "log_type all") as running:
        yield running


@pytest.mark.rule("gateway-2", "gateway-4", "gateway-11")
def test_the_running_site_is_the_described_one(broker: Mosquitto, folder: Path) -> None:
    arguments = ["gateway", "--mac", MAC.upper(), "--json", "--speed", "20"]
    with (
        PahoListener(broker) as listener,
        Program(*arguments, MESHFLEET_BROKER=broker_url(broker)) as program,
    ):
        message = json.loads(program.read_line())
        assert message == {"event": "connected", "gateway": MAC, "broker": broker_url(broker)}
        wait_for_log(folder, rf"New client connected from \S+ as {MAC} ")
        prefix = f"mt/gateway/{MAC}"
        listener.publish(f"{prefix}/request/{MAC}/apiversion")
        response = listener.receive(f"{prefix}/response/{MAC}/apiversion")
        assert (response.json["version"], response.qos) == ("2.4.0", 1)
        for device in (
            each
            for each in json.loads(run_command("gateway", "--mac", MAC, "--describe").output)["devices"]
            if each["model"] in ("0018", "0050", "0063")
        ):
            listener.publish(f"{prefix}/request/{device['mac']}/read/8000", _request(device))
            response = listener.receive(f"{prefix}/response/{device['mac']}/read/8000")
            assert (response.json["status"], response.json["value"].upper()) == (0, device["model"])
            assert _parent(response.json) == device["parent"]
        assert set(listener.receive(f"{prefix}/device/.*/property/8000").json) == {"time", "value", "seq"}


def _request(device: dict[str, Any]) -> bytes:
    """Build a request with the access fields of a device's description."""
    names = {"access": "accessType", "publicKey": "publicKey"}
    return json.dumps({names[name]: device[name] for name in names if name in device}).encode()


def _parent(response: dict[str, Any]) -> str:
    """Return the node before the target on the route of a response."""
    if "extenderId" in response:
        return str(response["extenderId"]).lower()
    return [MAC, *str(response["route"]).lower().split("-")][-2]


@pytest.mark.rule("gateway-10", "gateway-12", "gateway-42")
def test_every_option_takes_effect(broker: Mosquitto, tmp_path: Path) -> None:
    file = tmp_path / "site.json"
    device = {"mac": "c0ffee000002", "model": "0018", "x": 1, "y": 1}
    file.write_text(json.dumps({"devices": [device]}))
    with PahoListener(broker) as listener, Program(
        *("gateway", "--broker", broker_url(broker), "--mac", MAC),
        *("--mode", "decoded", "--api-version", "1.2.0"),
        *("--site", str(file), "--topic-prefix", "site/7", "--speed", "1000", "--seed", "3"),
        *("--fault", "quoted-seq=1", "--fault", "silent=1"),
    ) as program:  # fmt: skip
        assert re.search(r"decoded reports, API version 1\.2\.0", program.read_line())
        prefix = f"site/7/mt/gateway/{MAC}"
        heartbeats = [listener.receive(f"{prefix}/device/c0ffee000002/heartbeat") for _ in range(3)]
        assert all(isinstance(heartbeat.json["seq"], str) for heartbeat in heartbeats)
        times = [parse_time(heartbeat.json["time"]) for heartbeat in heartbeats]
        assert (times[2] - times[0]).total_seconds() < 60  # two simulated minutes
        assert listener.receive(f"{prefix}/device/c0ffee000002/property-decoded/model-number").json["value"]
        listener.publish(f"{prefix}/request/c0ffee000002/read/8000")
        response = listener.receive(f"{prefix}/response/c0ffee000002/read/8000").json
        assert (response["status"], "origin" in response) == (9, False)
        listener.publish(
            f"{prefix}/request/c0ffee000002/ack/8803", b'{"time":"2026-11-15T10:07:21.240Z","type":0}'
        )
        assert (
            listener.receive(f"{prefix}/response/c0ffee000002/ack/8803").json["status"] == 3
        )  # 1.2.0 has no acks


@pytest.mark.rule("gateway-13")
def test_a_gateway_can_run_without_subscriptions(broker: Mosquitto, folder: Path) -> None:
    subscribed = []
    for number, flags in enumerate([[], ["--disable-subscribe"]]):
        mac = f"d0cf5e0000b{number}"
        with Program("gateway", "--broker", broker_url(broker), "--mac", mac, *flags) as program:
            program.read_line()
            program.wait_for_exit(SIGTERM)
        wait_for_log(folder, f"Received DISCONNECT from {mac}")
        log = (folder / "mosquitto.log").read_text()
        subscribed.append(f"Received SUBSCRIBE from {mac}" in log)
    assert subscribed == [True, False]


def test_device_state_survives_a_restart_in_a_file(broker: Mosquitto, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    prefix = f"mt/gateway/{MAC}"
    arguments = [
        "gateway",
        "--broker",
        broker_url(broker),
        "--mac",
        MAC,
        "--devices",
        "0",
        "--state",
        str(state),
    ]
    with PahoListener(broker) as listener:
        with Program(*arguments) as first:
            first.read_line()
            listener.publish(f"{prefix}/request/{MAC}/write/9802", b'{"value":"08"}')
            assert listener.receive(f"{prefix}/response/{MAC}/write/9802").json["status"] == 0
            assert first.wait_for_exit(SIGTERM)[0] == 0
        with Program(*arguments) as second:
            second.read_line()
            listener.publish(f"{prefix}/request/{MAC}/read/9802")
            assert listener.receive(f"{prefix}/response/{MAC}/read/9802").json["value"] == "08"


@pytest.mark.rule("gateway-51", "gateway-52")
def test_a_survey_is_printed_and_true_positions_are_written(broker: Mosquitto, tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    options = ["--site-kind", "hall", "--walkers", "1", "--survey", "3", "--speed", "300"]
    arguments = ["gateway", "--broker", broker_url(broker), "--mac", MAC, *options, "--truth", str(truth)]
    (survey,) = (
        each["survey"]["points"]
        for each in json.loads(run_command("gateway", "--mac", MAC, *options, "--describe").output)["devices"]
        if "survey" in each
    )
    with Program(*arguments, "--json") as program:
        assert json.loads(program.read_line())["event"] == "connected"
        points = [json.loads(program.read_line()) for _ in survey]
        assert program.wait_for_exit(SIGTERM)[0] == 0
    for point, planned in zip(points, survey, strict=True):
        assert list(point) == ["device", "floor", "x", "y", "from", "to"]
        assert {name: point[name] for name in planned} == planned
        assert parse_time(point["from"]) < parse_time(point["to"])
    places = [json.loads(line) for line in truth.read_text().splitlines()]
    assert {tuple(each) for each in places} == {("time", "device", "floor", "x", "y")}
    assert len({each["device"] for each in places}) == 2
    assert {(each["x"], each["y"]) for each in places if each["device"] == points[0]["device"]} >= {
        (each["x"], each["y"]) for each in survey
    }


def test_the_gateway_stops_if_the_reader_of_its_survey_points_ends(broker: Mosquitto) -> None:
    command = f"{MESHFLEET} gateway --broker {broker_url(broker)} --mac {MAC} --survey 9 --speed 300"
    script = f"{command} | head -n 2; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        [require(BASH), "-c", script], capture_output=True, text=True, check=False, timeout=TEST_TIMEOUT
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(r"\nSurvey point of bmac-\w+: floor 0, x \S+, y \S+, from \S+ to \S+\n$", done.stdout)
