"""`meshfleet gateway` on a real broker: what runs is what was asked for."""

from __future__ import annotations

import json
import re
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import parse_time
from tests.cli.programs import PahoListener, Program, broker_url, run_command, wait_for_log
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
def test_what_runs_is_what_was_described(broker: Mosquitto, folder: Path) -> None:
    given = ["gateway", "--mac", MAC.upper(), "--json", "--speed", "20"]
    with PahoListener(broker) as ear, Program(*given, MESHFLEET_BROKER=broker_url(broker)) as program:
        said = json.loads(program.read_line())
        assert said == {"event": "connected", "gateway": MAC, "broker": broker_url(broker)}
        wait_for_log(folder, rf"New client connected from \S+ as {MAC} ")
        own = f"mt/gateway/{MAC}"
        ear.publish(f"{own}/request/{MAC}/apiversion")
        answer = ear.receive(f"{own}/response/{MAC}/apiversion")
        assert (answer.json["version"], answer.qos) == ("2.4.0", 1)
        for device in (
            each
            for each in json.loads(run_command("gateway", "--mac", MAC, "--describe").output)["devices"]
            if each["model"] in ("0018", "0050", "0063")
        ):
            ear.publish(f"{own}/request/{device['mac']}/read/8000", _request(device))
            answer = ear.receive(f"{own}/response/{device['mac']}/read/8000")
            assert (answer.json["status"], answer.json["value"].upper()) == (0, device["model"])
            assert _parent(answer.json) == device["parent"]
        assert set(ear.receive(f"{own}/device/.*/property/8000").json) == {"time", "value", "seq"}


def _request(device: dict[str, Any]) -> bytes:
    """What it takes to reach a device, by its description."""
    names = {"access": "accessType", "publicKey": "publicKey"}
    return json.dumps({names[name]: device[name] for name in names if name in device}).encode()


def _parent(answer: dict[str, Any]) -> str:
    """Who stands before the target, on the way that an answer tells of."""
    if "extenderId" in answer:
        return str(answer["extenderId"]).lower()
    return [MAC, *str(answer["route"]).lower().split("-")][-2]


@pytest.mark.rule("gateway-10", "gateway-12", "gateway-42")
def test_every_option_counts(broker: Mosquitto, tmp_path: Path) -> None:
    file = tmp_path / "site.json"
    device = {"mac": "c0ffee000002", "model": "0018", "x": 1, "y": 1}
    file.write_text(json.dumps({"devices": [device]}))
    with PahoListener(broker) as ear, Program(
        *("gateway", "--broker", broker_url(broker), "--mac", MAC),
        *("--mode", "decoded", "--api-version", "1.2.0"),
        *("--site", str(file), "--topic-prefix", "site/7", "--speed", "1000", "--seed", "3"),
        *("--fault", "quoted-seq=1", "--fault", "silent=1"),
    ) as program:  # fmt: skip
        assert re.search(r"decoded reports, API version 1\.2\.0", program.read_line())
        own = f"site/7/mt/gateway/{MAC}"
        beats = [ear.receive(f"{own}/device/c0ffee000002/heartbeat") for _ in range(3)]
        assert all(isinstance(beat.json["seq"], str) for beat in beats)
        times = [parse_time(beat.json["time"]) for beat in beats]
        assert (times[2] - times[0]).total_seconds() < 60  # two minutes of the world
        assert ear.receive(f"{own}/device/c0ffee000002/property-decoded/model-number").json["value"]
        ear.publish(f"{own}/request/c0ffee000002/read/8000")
        answer = ear.receive(f"{own}/response/c0ffee000002/read/8000").json
        assert (answer["status"], "origin" in answer) == (9, False)
        ear.publish(f"{own}/request/c0ffee000002/ack/8803", b'{"time":"2026-11-15T10:07:21.240Z","type":0}')
        assert (
            ear.receive(f"{own}/response/c0ffee000002/ack/8803").json["status"] == 3
        )  # there was none in 1.2.0


@pytest.mark.rule("gateway-13")
def test_a_gateway_may_subscribe_to_nothing(broker: Mosquitto, folder: Path) -> None:
    subscribed = []
    for number, more in enumerate([[], ["--disable-subscribe"]]):
        mac = f"d0cf5e0000b{number}"
        with Program("gateway", "--broker", broker_url(broker), "--mac", mac, *more) as program:
            program.read_line()
            program.wait_for_exit(SIGTERM)
        wait_for_log(folder, f"Received DISCONNECT from {mac}")
        log = (folder / "mosquitto.log").read_text()
        subscribed.append(f"Received SUBSCRIBE from {mac}" in log)
    assert subscribed == [True, False]


def test_what_devices_keep_outlasts_the_program_in_a_file(broker: Mosquitto, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    own = f"mt/gateway/{MAC}"
    given = ["gateway", "--broker", broker_url(broker), "--mac", MAC, "--devices", "0", "--state", str(state)]
    with PahoListener(broker) as ear:
        with Program(*given) as first:
            first.read_line()
            ear.publish(f"{own}/request/{MAC}/write/9802", b'{"value":"08"}')
            assert ear.receive(f"{own}/response/{MAC}/write/9802").json["status"] == 0
            assert first.wait_for_exit(SIGTERM)[0] == 0
        with Program(*given) as second:
            second.read_line()
            ear.publish(f"{own}/request/{MAC}/read/9802")
            assert ear.receive(f"{own}/response/{MAC}/read/9802").json["value"] == "08"
