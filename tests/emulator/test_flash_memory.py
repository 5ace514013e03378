"""Saving and restoring of the flash memory of devices."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator import EmulatorSettings, GatewayEmulator, SimulatedClock, generate_site
from meshfleet.errors.emulator import UnreadableMemory
from meshfleet.protocol.ids import Mac
from tests.row_tables import each_row

MAC = Mac("02005e00000a")
SITE = generate_site(MAC, devices=10, seed=1)
LEAF, CLIP = SITE.devices[1].mac, SITE.devices[3].mac
START = 1_790_000_000_000
LATER = START + 3_600_000


def create_gateway(memory: bytes | None = None, *, origin: int = START) -> GatewayEmulator:
    return GatewayEmulator(EmulatorSettings(mac=MAC), SITE, SimulatedClock(origin), memory=memory)


def send_request(gateway: GatewayEmulator, path: str, t: float, **parameters: Any) -> dict[str, Any]:
    gateway.receive(f"mt/gateway/{MAC}/request/{path}", json.dumps(parameters).encode(), t)
    (response,) = [message for message in gateway.advance(t + 11.0) if "/response/" in message.topic]
    body: dict[str, Any] = json.loads(response.payload)
    return body


def collect_samples(gateway: GatewayEmulator, device: Mac, until: float) -> list[dict[str, Any]]:
    topic = f"mt/gateway/{MAC}/device/{device}/measurement/8803"
    return [json.loads(message.payload) for message in gateway.advance(until) if message.topic == topic]


@pytest.mark.rule("gateway-47", "ack-18")
def test_unacknowledged_samples_are_restored() -> None:
    before = create_gateway()
    unacknowledged = collect_samples(before, LEAF, 600.0)
    after = create_gateway(before.save_memory(), origin=LATER)
    newest = collect_samples(after, LEAF, 61.0)
    ack = json.dumps({"time": newest[-1]["time"], "type": 1}).encode()
    after.receive(f"mt/gateway/{MAC}/request/{LEAF}/ack/8803", ack, 61.0)
    backfilled = collect_samples(after, LEAF, 66.0)
    assert backfilled == [*reversed(newest[:-1]), *reversed(unacknowledged)]


def test_sequence_numbers_continue() -> None:
    before = create_gateway()
    last_sample = collect_samples(before, LEAF, 600.0)[-1]
    first_sample = collect_samples(create_gateway(before.save_memory(), origin=LATER), LEAF, 61.0)[0]
    assert first_sample["seq"] == last_sample["seq"] + 1


def test_written_properties_are_restored_and_take_effect() -> None:
    before = create_gateway()
    assert send_request(before, f"{LEAF}/write/9802", 100.0, value="fc")["status"] == 0
    assert send_request(before, f"{LEAF}/write/8110", 120.0, value="04")["status"] == 0
    after = create_gateway(before.save_memory(), origin=LATER)
    response = send_request(after, f"{LEAF}/read/9802", 1.0)
    assert (response["value"], response["origin"]) == ("fc", 1)
    assert send_request(after, f"{LEAF}/read/8110", 20.0)["value"] == "04"


def test_uptime_battery_and_version_are_restored() -> None:
    before = create_gateway()
    uptime = send_request(before, f"{LEAF}/read-decoded/uptime", 1000.0)["value"]
    after = create_gateway(before.save_memory(), origin=LATER)
    for t, name in ((1020.0, "battery-level"), (1040.0, "firmware-version")):
        old, new = (send_request(gateway, f"{LEAF}/read-decoded/{name}", t) for gateway in (before, after))
        assert old["value"] == new["value"]
    assert send_request(after, f"{LEAF}/read-decoded/uptime", 1060.0)["value"] > uptime


def test_a_restored_memory_is_saved_unchanged() -> None:
    before = create_gateway()
    before.advance(4000.0)
    memory = before.save_memory()
    assert json.loads(create_gateway(memory).save_memory()) == json.loads(memory)


def test_devices_missing_in_the_memory_are_new_and_unknown_ones_are_ignored() -> None:
    before = create_gateway()
    before.advance(600.0)
    memory = json.loads(before.save_memory())
    memory["devices"]["c0ffee000000"] = memory["devices"].pop(LEAF)
    after = create_gateway(json.dumps(memory).encode())
    assert collect_samples(after, LEAF, 61.0)[0]["seq"] == 0


@cache
def _save_used_memory() -> bytes:
    """Return the memory of a gateway that ran for ten minutes."""
    before = create_gateway()
    before.advance(600.0)
    return before.save_memory()


def _build_damaged_memory(**changes: Any) -> bytes:
    memory = json.loads(_save_used_memory())
    memory["devices"][LEAF] |= changes
    return json.dumps(memory).encode()


@each_row(
    "memory",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"gateway":"c0ffee000000","devices":{}}',
        _build_damaged_memory(version="three"),
        _build_damaged_memory(mode=9),
        _build_damaged_memory(seqs=5),
        _build_damaged_memory(values={"9802": "not base64!"}),
        _build_damaged_memory(values={"9802": ""}),
        _build_damaged_memory(values={"9802": "Cg=="}),
        _build_damaged_memory(version="999.0.0"),
        _build_damaged_memory(battery=101),
        _build_damaged_memory(uptime=-1),
        _build_damaged_memory(uptime=1e300),
        _build_damaged_memory(moved=-1),
        _build_damaged_memory(doors=2**40),
        _build_damaged_memory(seqs="AAAA"),
        _build_damaged_memory(
            series=[{"kind": "measurement", "identifier": "8803", "samples": [[2**62, 2, "AAA="]]}]
        ),
        _build_damaged_memory(series=[{"kind": "measurement", "identifier": "8803", "samples": [[1, 2]]}]),
    ],
)
def test_an_invalid_memory_is_rejected(memory: bytes) -> None:
    with pytest.raises(UnreadableMemory):
        create_gateway(memory)


def test_values_and_samples_of_unknown_identifiers_are_ignored() -> None:
    series = [
        {"kind": "measurement", "identifier": "8800", "samples": [[1, 2, "AAA="]]},
        {"kind": "property", "identifier": "8803", "samples": [[1, 2, "AAA="]]},
    ]
    after = create_gateway(_build_damaged_memory(values={"8125": "AAAA", "ff00": "AA=="}, series=series))
    record = json.loads(after.save_memory())["devices"][LEAF]
    assert (record["values"], record["series"]) == ({}, [])


@given(st.binary())
def test_arbitrary_bytes_are_rejected(memory: bytes) -> None:
    with pytest.raises(UnreadableMemory):
        create_gateway(memory)
