"""The fleet of the demo in a registry, and what its devices remember."""

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

HOME = BUILDINGS[0]
MACS = {each.gateway for each in BUILDINGS}
DEVICES = sum(each.devices for each in BUILDINGS)


def test_the_passwords_that_it_gives_are_those_of_its_gateways(database: Database) -> None:
    for _ in range(2):
        given = fill_registry(database, static=False)
        assert set(given) == MACS
        assert database.read_now(store.load_password_digests, MACS) == {
            mac: hash_credential(each) for mac, each in given.items()
        }


def test_filling_twice_doubles_nothing(database: Database) -> None:
    fill_registry(database, static=False)
    first = database.read_now(summary.count_devices, DeviceFilter())
    assert first.total == DEVICES + len(MACS) + 1  # and one that was never heard
    fill_registry(database, static=False)
    assert database.read_now(summary.count_devices, DeviceFilter()) == first


def test_who_lives_is_not_connected_before_it_connects(database: Database) -> None:
    fill_registry(database, static=False)
    assert database.read_now(summary.count_devices, DeviceFilter()).connected == 0


def test_who_stands_still_looks_alive_and_gets_no_password(database: Database) -> None:
    for _ in range(2):
        assert fill_registry(database, static=True) == {}
        shown = database.read_now(summary.count_devices, DeviceFilter())
        assert len(MACS) < shown.connected < DEVICES
    assert set(fill_registry(database, static=False)) == MACS


def test_a_gateway_that_was_released_stays_away(database: Database) -> None:
    fill_registry(database, static=False)
    database.write_now(store.release_gateway, HOME.gateway, by=SERVICE, now=1)
    assert set(fill_registry(database, static=False)) == MACS - {HOME.gateway}


def test_a_registry_with_devices_of_its_own_is_left_alone(database: Database) -> None:
    database.write_now(registry.record_observations, [DeviceObservation(device=Mac("c0ffee000001"), at=1)])
    assert fill_registry(database, static=False) == {}
    assert database.read_now(summary.count_devices, DeviceFilter()).total == 1


@each_row("building", BUILDINGS)
def test_nobody_depends_on_a_device_whose_battery_is_empty(building: Building) -> None:
    empty = [each for each in build_site(building).devices if not each.battery]
    assert {each.product.role for each in empty} == {NodeRole.LEAF}


@each_row(
    ("listeners", "way"),
    [
        (["mqtts://127.0.0.1:8883", "ws://127.0.0.1:81", "mqtt://127.0.0.1:1883"], "mqtt://127.0.0.1:1883"),
        (["mqtts://127.0.0.1:8883", "ws://127.0.0.1:81"], "ws://127.0.0.1:81/mqtt"),
        (["wss://127.0.0.1:443", "mqtts://127.0.0.1:8883"], "mqtts://127.0.0.1:8883"),
        (["mqtt://0.0.0.0:1883"], "mqtt://127.0.0.1:1883"),
        (["mqtt://[::]:1883"], "mqtt://[::1]:1883"),
    ],
)
def test_gateways_take_the_simplest_way_on_this_machine(listeners: list[str], way: str) -> None:
    assert str(select_local_listener(listeners)) == way


# --- What the devices remember ---


def wake(folder: Path) -> tuple[DeviceStateStore, GatewayEmulator]:
    memory = DeviceStateStore(folder / "demo")
    return memory, memory.restore_gateway(
        EmulatorSettings(mac=HOME.gateway), build_site(HOME), SimulatedClock(0)
    )


def test_devices_go_on_where_they_were(tmp_path: Path) -> None:
    memory, gateway = wake(tmp_path)
    fresh = gateway.save_memory()
    gateway.advance(300.0)
    memory.save_all()
    _, again = wake(tmp_path)
    assert msgspec.json.decode(again.save_memory()) == msgspec.json.decode(gateway.save_memory())
    assert again.save_memory() != fresh


@each_row("kept", [b"", b"{}", b"\xff"])
def test_what_cannot_be_read_is_forgotten_and_told(
    kept: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wake(tmp_path)[0].save_all()
    (file,) = (tmp_path / "demo").iterdir()
    file.write_bytes(kept)
    caplog.clear()  # of the row before
    memory, gateway = wake(tmp_path)
    assert "begin anew" in caplog.text
    memory.save_all()
    assert file.read_bytes() == gateway.save_memory()


def test_where_nothing_can_be_kept_the_demo_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "demo").write_bytes(b"no folder")
    memory, gateway = wake(tmp_path)
    memory.save_all()
    assert "cannot be kept" in caplog.text
    assert gateway.advance(60.0)
