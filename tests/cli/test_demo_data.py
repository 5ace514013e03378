"""Data of the demo: its fleet in the registry, and the saved state of its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from meshfleet.cli.demo_data import BUILDINGS, build_site, fill_registry
from meshfleet.cli.demo_device_state import DeviceStateStore
from meshfleet.cli.demo_service import select_local_listener
from meshfleet.emulator import EmulatorSettings, SimulatedClock
from meshfleet.emulator.simulation.products import NodeRole
from meshfleet.protocol.ids import Mac
from meshfleet.service.accounts.api_key_store import hash_credential
from meshfleet.service.actor import SERVICE
from meshfleet.service.devices import registry, summary
from meshfleet.service.devices.model import DeviceFilter, DeviceObservation
from meshfleet.service.gateways import store
from tests.row_tables import each_row

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from meshfleet.cli.demo_data import Building
    from meshfleet.db import Database
    from meshfleet.emulator import GatewayEmulator

BUILDING = BUILDINGS[0]
MACS = {each.gateway for each in BUILDINGS}
DEVICES = sum(each.devices for each in BUILDINGS)


def test_the_returned_passwords_are_those_of_the_gateways(database: Database) -> None:
    for _ in range(2):
        passwords = fill_registry(database, static=False)
        assert set(passwords) == MACS
        assert database.read_now(store.load_password_digests, MACS) == {
            mac: hash_credential(each) for mac, each in passwords.items()
        }


def test_filling_twice_adds_no_devices(database: Database) -> None:
    fill_registry(database, static=False)
    first = database.read_now(summary.count_devices, DeviceFilter())
    assert first.total == DEVICES + len(MACS) + 1  # and the gateway that has never connected
    fill_registry(database, static=False)
    assert database.read_now(summary.count_devices, DeviceFilter()) == first


def test_devices_of_a_running_demo_start_disconnected(database: Database) -> None:
    fill_registry(database, static=False)
    assert database.read_now(summary.count_devices, DeviceFilter()).connected == 0


def test_a_static_demo_looks_connected_and_gets_no_passwords(database: Database) -> None:
    for _ in range(2):
        assert fill_registry(database, static=True) == {}
        counts = database.read_now(summary.count_devices, DeviceFilter())
        assert len(MACS) < counts.connected < DEVICES
    assert set(fill_registry(database, static=False)) == MACS


def test_a_released_gateway_is_not_claimed_again(database: Database) -> None:
    fill_registry(database, static=False)
    database.write_now(store.release_gateway, BUILDING.gateway, by=SERVICE, now=1)
    assert set(fill_registry(database, static=False)) == MACS - {BUILDING.gateway}


def test_a_registry_with_other_devices_is_unchanged(database: Database) -> None:
    database.write_now(registry.record_observations, [DeviceObservation(device=Mac("c0ffee000001"), at=1)])
    assert fill_registry(database, static=False) == {}
    assert database.read_now(summary.count_devices, DeviceFilter()).total == 1


@each_row("building", BUILDINGS)
def test_only_leaves_have_empty_batteries(building: Building) -> None:
    empty = [each for each in build_site(building).devices if not each.battery]
    assert {each.product.role for each in empty} == {NodeRole.LEAF}


@each_row(
    ("listeners", "selected"),
    [
        (["mqtts://127.0.0.1:8883", "ws://127.0.0.1:81", "mqtt://127.0.0.1:1883"], "mqtt://127.0.0.1:1883"),
        (["mqtts://127.0.0.1:8883", "ws://127.0.0.1:81"], "ws://127.0.0.1:81/mqtt"),
        (["wss://127.0.0.1:443", "mqtts://127.0.0.1:8883"], "mqtts://127.0.0.1:8883"),
        (["mqtt://0.0.0.0:1883"], "mqtt://127.0.0.1:1883"),
        (["mqtt://[::]:1883"], "mqtt://[::1]:1883"),
    ],
)
def test_gateways_use_the_simplest_local_listener(listeners: list[str], selected: str) -> None:
    assert str(select_local_listener(listeners)) == selected


# --- Saved state of the devices ---


def restore(folder: Path) -> tuple[DeviceStateStore, GatewayEmulator]:
    states = DeviceStateStore(folder / "demo")
    return states, states.restore_gateway(
        EmulatorSettings(mac=BUILDING.gateway), build_site(BUILDING), SimulatedClock(0)
    )


def test_devices_continue_with_their_saved_state(tmp_path: Path) -> None:
    states, gateway = restore(tmp_path)
    new_state = gateway.save_memory()
    gateway.advance(300.0)
    states.save_all()
    _, restored = restore(tmp_path)
    assert msgspec.json.decode(restored.save_memory()) == msgspec.json.decode(gateway.save_memory())
    assert restored.save_memory() != new_state


@each_row("content", [b"", b"{}", b"\xff"])
def test_an_unreadable_state_is_discarded_with_a_warning(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    restore(tmp_path)[0].save_all()
    (file,) = (tmp_path / "demo").iterdir()
    file.write_bytes(content)
    caplog.clear()  # of the previous row
    states, gateway = restore(tmp_path)
    assert "start with a new state" in caplog.text
    states.save_all()
    assert file.read_bytes() == gateway.save_memory()


def test_the_demo_goes_on_if_the_state_cannot_be_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "demo").write_bytes(b"not a directory")
    states, gateway = restore(tmp_path)
    states.save_all()
    assert "cannot be saved" in caplog.text
    assert gateway.advance(60.0)
