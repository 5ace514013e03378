"""What devices keep, written down and given back."""

from __future__ import annotations

import json
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


def gateway(memory: bytes | None = None, *, origin: int = START) -> GatewayEmulator:
    return GatewayEmulator(EmulatorSettings(mac=MAC), SITE, SimulatedClock(origin), memory=memory)


def ask(of: GatewayEmulator, what: str, t: float, **parameters: Any) -> dict[str, Any]:
    of.receive(f"mt/gateway/{MAC}/request/{what}", json.dumps(parameters).encode(), t)
    (response,) = [each for each in of.advance(t + 11.0) if "/response/" in each.topic]
    told: dict[str, Any] = json.loads(response.payload)
    return told


def samples(of: GatewayEmulator, device: Mac, until: float) -> list[dict[str, Any]]:
    topic = f"mt/gateway/{MAC}/device/{device}/measurement/8803"
    return [json.loads(each.payload) for each in of.advance(until) if each.topic == topic]


@pytest.mark.rule("gateway-47", "ack-18")
def test_samples_that_nobody_acknowledged_are_there_in_another_life() -> None:
    before = gateway()
    told = samples(before, LEAF, 600.0)
    after = gateway(before.save_memory(), origin=LATER)
    newest = samples(after, LEAF, 61.0)
    ack = json.dumps({"time": newest[-1]["time"], "type": 1}).encode()
    after.receive(f"mt/gateway/{MAC}/request/{LEAF}/ack/8803", ack, 61.0)
    backfilled = samples(after, LEAF, 66.0)
    assert backfilled == [*reversed(newest[:-1]), *reversed(told)]


def test_counters_go_on_where_they_were() -> None:
    before = gateway()
    last = samples(before, LEAF, 600.0)[-1]
    first = samples(gateway(before.save_memory(), origin=LATER), LEAF, 61.0)[0]
    assert first["seq"] == last["seq"] + 1


def test_what_was_written_is_kept_and_takes_effect() -> None:
    before = gateway()
    assert ask(before, f"{LEAF}/write/9802", 100.0, value="fc")["status"] == 0
    assert ask(before, f"{LEAF}/write/8110", 120.0, value="04")["status"] == 0
    after = gateway(before.save_memory(), origin=LATER)
    answer = ask(after, f"{LEAF}/read/9802", 1.0)
    assert (answer["value"], answer["origin"]) == ("fc", 1)
    assert ask(after, f"{LEAF}/read/8110", 20.0)["value"] == "04"


def test_uptime_battery_and_version_go_on() -> None:
    before = gateway()
    uptime = ask(before, f"{LEAF}/read-decoded/uptime", 1000.0)["value"]
    after = gateway(before.save_memory(), origin=LATER)
    for t, name in ((1020.0, "battery-level"), (1040.0, "firmware-version")):
        old, new = (ask(each, f"{LEAF}/read-decoded/{name}", t) for each in (before, after))
        assert old["value"] == new["value"]
    assert ask(after, f"{LEAF}/read-decoded/uptime", 1060.0)["value"] > uptime


def test_a_memory_given_back_is_the_same_memory() -> None:
    before = gateway()
    before.advance(4000.0)
    memory = before.save_memory()
    assert json.loads(gateway(memory).save_memory()) == json.loads(memory)


def test_devices_of_which_nothing_is_known_are_new_and_unknown_ones_are_passed_over() -> None:
    before = gateway()
    before.advance(600.0)
    memory = json.loads(before.save_memory())
    memory["devices"]["c0ffee000000"] = memory["devices"].pop(LEAF)
    after = gateway(json.dumps(memory).encode())
    assert samples(after, LEAF, 61.0)[0]["seq"] == 0


def _damaged(**changes: Any) -> bytes:
    before = gateway()
    before.advance(600.0)
    memory = json.loads(before.save_memory())
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
        _damaged(version="three"),
        _damaged(mode=9),
        _damaged(seqs=5),
        _damaged(values={"9802": "not base64!"}),
        _damaged(values={"9802": ""}),
        _damaged(values={"9802": "Cg=="}),
        _damaged(version="999.0.0"),
        _damaged(battery=101),
        _damaged(uptime=-1),
        _damaged(uptime=1e300),
        _damaged(moved=-1),
        _damaged(doors=2**40),
        _damaged(seqs="AAAA"),
        _damaged(series=[{"kind": "measurement", "identifier": "8803", "samples": [[2**62, 2, "AAA="]]}]),
        _damaged(series=[{"kind": "measurement", "identifier": "8803", "samples": [[1, 2]]}]),
    ],
)
def test_what_is_no_memory_is_refused(memory: bytes) -> None:
    with pytest.raises(UnreadableMemory):
        gateway(memory)


def test_values_and_samples_of_identifiers_that_a_device_does_not_have_are_passed_over() -> None:
    series = [
        {"kind": "measurement", "identifier": "8800", "samples": [[1, 2, "AAA="]]},
        {"kind": "property", "identifier": "8803", "samples": [[1, 2, "AAA="]]},
    ]
    after = gateway(_damaged(values={"8125": "AAAA", "ff00": "AA=="}, series=series))
    kept = json.loads(after.save_memory())["devices"][LEAF]
    assert (kept["values"], kept["series"]) == ({}, [])


@given(st.binary())
def test_arbitrary_bytes_are_a_memory_or_refused(memory: bytes) -> None:
    with pytest.raises(UnreadableMemory):
        gateway(memory)
