from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from meshfleet.db.tables import device, device_label, device_state, label
from meshfleet.errors import NotFound
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from meshfleet.service.devices import listing, registry
from meshfleet.service.devices.model import DeviceFilter, DeviceObservation, SortOrder
from tests.examples import examples
from tests.service.devices import fleets

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.rest.devices import DeviceDetail

pytestmark = pytest.mark.both_databases

MAC = Mac("c0ffee0000a1")
GATEWAY = Mac("c0ffee000001")


def _observe(database: Database, *sightings: DeviceObservation) -> None:
    database.write_now(registry.record_observations, sightings)


def _detail(database: Database, mac: Mac = MAC) -> DeviceDetail:
    return database.read_now(listing.load_device_detail, mac)


def _names(database: Database, text: str) -> list[str]:
    items, _ = database.read_now(
        listing.list_devices, DeviceFilter(name=text), SortOrder(), after=None, limit=10
    )
    return [item.friendly_name for item in items]


def _all_rows(connection: Connection) -> list[list[tuple[Any, ...]]]:
    queries = [table.select().order_by(*table.primary_key) for table in (device, device_state)]
    return [[tuple(row) for row in connection.execute(query)] for query in queries]


@pytest.mark.rule("rest-45", "rest-48")
def test_of_a_new_device_only_what_was_seen_is_known(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1_000, heard=False))
    found = _detail(database)
    assert (found.id, found.friendly_name) == ("bmac-c0ffee0000a1", "Device 00a1")
    assert (found.model_number, found.firmware_version, found.hardware_version) == ("0000", "0.0.0", "0.0.0")
    assert (found.boot_mode, found.imei, found.status) == (None, None, None)
    assert (found.connectivity.connected, found.connectivity.timestamp) == (False, "1970-01-01T00:00:01.000Z")
    assert found.live.last_report_at is None


@pytest.mark.rule("rest-39", "rest-49", "rest-50")
def test_all_that_was_seen_is_told(database: Database) -> None:
    seen = DeviceObservation(
        device=MAC,
        at=2_000,
        gateway=GATEWAY,
        model=ModelNumber("0011"),
        variant=4,
        firmware=Version.parse("2.5.0-beta.3"),
        hardware=Version.parse("1.2"),
        imei="356938035643809",
        connected=True,
        status=3,
        boot_mode="dfu",
        parent=GATEWAY,
        rssi=-71,
        battery=88,
    )
    _observe(database, seen)
    found = _detail(database)
    assert (found.firmware_version, found.firmware_version_text) == ("2.5.0", "2.5.0-beta.3")
    assert (found.hardware_version, found.product, found.friendly_name) == ("1.2.0", "KKM B1", "KKM B1 00a1")
    assert (found.imei, found.boot_mode, found.status) == ("356938035643809", "dfu", 3)
    assert (found.live.gateway, found.live.parent, found.live.rssi, found.live.battery) == (
        GATEWAY,
        GATEWAY,
        -71,
        88,
    )
    assert found.live.last_report_at == "1970-01-01T00:00:02.000Z"


@pytest.mark.rule("rest-45")
def test_a_name_that_nobody_gave_follows_the_model(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1))
    _observe(database, DeviceObservation(device=MAC, at=2, model=ModelNumber("0018")))
    assert _detail(database).friendly_name == "MT MotionSensor 15x 00a1"
    assert _names(database, "MOTION") == ["MT MotionSensor 15x 00a1"]
    assert _names(database, "Device") == []


def test_a_name_that_somebody_gave_stays(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1))
    database.write_now(registry.set_device_names, [(MAC, "Büro 7")])
    _observe(database, DeviceObservation(device=MAC, at=2, model=ModelNumber("0018")))
    assert _detail(database).friendly_name == "Büro 7"
    assert _names(database, "BÜRO") == ["Büro 7"]
    assert _names(database, "Device") == []


@pytest.mark.rule("rest-53")
def test_the_time_of_connectivity_moves_only_when_it_changes(database: Database) -> None:
    for at, connected in ((1_000, True), (2_000, True), (3_000, False), (4_000, False)):
        _observe(database, DeviceObservation(device=MAC, at=at, connected=connected))
    connectivity = _detail(database).connectivity
    assert (connectivity.connected, connectivity.timestamp) == (False, "1970-01-01T00:00:03.000Z")


def test_an_older_report_changes_no_state(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=2_000, rssi=-50))
    _observe(database, DeviceObservation(device=MAC, at=1_000, rssi=-90, battery=5))
    live = _detail(database).live
    assert (live.rssi, live.last_report_at) == (-50, "1970-01-01T00:00:02.000Z")
    assert live.battery == 5  # which nobody had told before


def test_an_older_report_moves_no_fact_back(database: Database) -> None:
    version = Version.parse
    _observe(
        database,
        DeviceObservation(
            device=MAC, at=2_000, connected=True, firmware=version("2.0.0"), gateway=Mac("d0cf5e000001")
        ),
    )
    _observe(
        database,
        DeviceObservation(
            device=MAC,
            at=1_000,
            connected=False,
            firmware=version("1.0.0"),
            gateway=Mac("d0cf5e000002"),
            model=ModelNumber("0018"),
        ),
    )
    found = _detail(database)
    assert (found.connectivity.connected, found.firmware_version) == (True, "2.0.0")
    assert found.live.gateway == "d0cf5e000001"
    assert found.model_number == "0018"  # which nobody had told before


def test_two_processes_that_first_hear_a_device_lose_nothing(postgresql_database: Database) -> None:
    heard, told = threading.Event(), threading.Event()

    def hear_slowly(connection: Connection) -> None:
        registry.record_observations(
            connection, [DeviceObservation(device=MAC, at=1_000, gateway=Mac("d0cf5e000001"))]
        )
        heard.set()
        told.wait(1.0)  # the other one waits for us, or is done

    def hear_too() -> None:
        heard.wait()
        seen = DeviceObservation(device=MAC, at=2_000, connected=True, model=ModelNumber("000F"))
        postgresql_database.write_now(registry.record_observations, [seen])
        told.set()

    other = threading.Thread(target=hear_too)
    other.start()
    postgresql_database.write_now(hear_slowly)
    other.join()
    found = _detail(postgresql_database)
    assert (found.connectivity.connected, found.model_number) == (True, "000F")
    assert found.live.gateway == "d0cf5e000001"
    postgresql_database.close()


def test_a_silence_that_is_noticed_is_no_report(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1_000, connected=True))
    _observe(database, DeviceObservation(device=MAC, at=9_000, connected=False, heard=False))
    found = _detail(database)
    assert (found.connectivity.connected, found.live.last_report_at) == (False, "1970-01-01T00:00:01.000Z")


states = st.builds(
    DeviceObservation,
    device=st.sampled_from(fleets.MACS[:3]),
    at=st.integers(1, 4),
    heard=st.booleans(),
    name=st.sampled_from([UNSET, UNSET, "a", "b"]),
    gateway=st.sampled_from([UNSET, *fleets.MACS[:2]]),
    model=st.sampled_from([UNSET, *fleets.MODELS]),
    variant=st.sampled_from([UNSET, 1, 4]),
    firmware=st.sampled_from([UNSET, *fleets.FIRMWARE]),
    imei=st.sampled_from([UNSET, None, "1"]),
    connected=st.sampled_from([UNSET, True, False]),
    status=st.sampled_from([UNSET, 0, 1]),
    boot_mode=st.sampled_from([UNSET, None, "dfu"]),
    parent=st.sampled_from([UNSET, *fleets.MACS[:2]]),
    rssi=st.sampled_from([UNSET, -50, -60]),
)


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.lists(states, max_size=4), batch=st.lists(states, max_size=8))
def test_a_batch_does_what_its_sightings_do_one_by_one(
    database: Database, before: list[DeviceObservation], batch: list[DeviceObservation]
) -> None:
    outcomes = []
    for groups in ([before, batch], [[seen] for seen in before + batch]):
        database.write_now(fleets.clear_fleet)
        for group in groups:
            database.write_now(registry.record_observations, group)
        outcomes.append(database.read_now(_all_rows))
    assert outcomes[0] == outcomes[1]


@pytest.mark.rule("rest-33", "rest-62")
def test_labels_are_made_when_they_are_attached_and_listed_in_order(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1))
    database.write_now(registry.attach_labels, [(text, MAC) for text in ("é", "b", "倉庫", "B", "b")], at=1)
    database.write_now(registry.attach_labels, [("b", MAC)], at=2)
    assert _detail(database).labels == ["B", "b", "é", "倉庫"]


@pytest.mark.rule("rest-41")
def test_a_forgotten_device_comes_back_when_it_is_heard(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1, name="Lamp", rssi=-50))
    database.write_now(registry.attach_labels, [("a", MAC)], at=1)
    assert database.write_now(registry.delete_device, MAC)
    assert not database.write_now(registry.delete_device, MAC)
    with pytest.raises(NotFound):
        database.read_now(listing.load_device, MAC)
    assert database.read_now(lambda connection: connection.execute(device_label.select()).all()) == []
    assert _names(database, "Lamp") == []
    _observe(database, DeviceObservation(device=MAC, at=2))
    found = _detail(database)
    assert (found.friendly_name, found.labels, found.live.rssi) == ("Device 00a1", [], None)


def test_a_label_is_not_made_twice(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1), DeviceObservation(device=GATEWAY, at=1))
    for mac in (MAC, GATEWAY):
        database.write_now(registry.attach_labels, [("a", mac)], at=1)
    assert len(database.read_now(lambda connection: connection.execute(label.select()).all())) == 1
