from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
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


def _observe(database: Database, *observations: DeviceObservation) -> None:
    database.write_now(registry.record_observations, observations)


def _load_detail(database: Database, mac: Mac = MAC) -> DeviceDetail:
    return database.read_now(listing.load_device_detail, mac)


def _find_names(database: Database, text: str) -> list[str]:
    items, _ = database.read_now(
        listing.list_devices, DeviceFilter(name=text), SortOrder(), after=None, limit=10
    )
    return [item.friendly_name for item in items]


def _load_all_rows(connection: Connection) -> list[list[tuple[Any, ...]]]:
    queries = [table.select().order_by(*table.primary_key) for table in (device, device_state)]
    return [[tuple(row) for row in connection.execute(query)] for query in queries]


@pytest.mark.rule("rest-45", "rest-48")
def test_a_new_device_has_only_the_observed_fields(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1_000, heard=False))
    detail = _load_detail(database)
    assert (detail.id, detail.friendly_name) == ("bmac-c0ffee0000a1", "Device 00a1")
    assert (detail.model_number, detail.firmware_version, detail.hardware_version) == (
        "0000",
        "0.0.0",
        "0.0.0",
    )
    assert (detail.boot_mode, detail.imei, detail.status) == (None, None, None)
    assert (detail.connectivity.connected, detail.connectivity.timestamp) == (
        False,
        "1970-01-01T00:00:01.000Z",
    )
    assert detail.live.last_report_at is None


@pytest.mark.rule("rest-39", "rest-49", "rest-50")
def test_all_observed_fields_are_returned(database: Database) -> None:
    observation = DeviceObservation(
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
    _observe(database, observation)
    detail = _load_detail(database)
    assert (detail.firmware_version, detail.firmware_version_text) == ("2.5.0", "2.5.0-beta.3")
    assert (detail.hardware_version, detail.product, detail.friendly_name) == (
        "1.2.0",
        "KKM B1",
        "KKM B1 00a1",
    )
    assert (detail.imei, detail.boot_mode, detail.status) == ("356938035643809", "dfu", 3)
    assert (detail.live.gateway, detail.live.parent, detail.live.rssi, detail.live.battery) == (
        GATEWAY,
        GATEWAY,
        -71,
        88,
    )
    assert detail.live.last_report_at == "1970-01-01T00:00:02.000Z"


@pytest.mark.rule("rest-45")
def test_a_default_name_follows_the_model(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1))
    _observe(database, DeviceObservation(device=MAC, at=2, model=ModelNumber("0018")))
    assert _load_detail(database).friendly_name == "MT MotionSensor 15x 00a1"
    assert _find_names(database, "MOTION") == ["MT MotionSensor 15x 00a1"]
    assert _find_names(database, "Device") == []


def test_a_name_set_by_a_user_is_kept(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1))
    database.write_now(registry.set_device_names, [(MAC, "Büro 7")])
    _observe(database, DeviceObservation(device=MAC, at=2, model=ModelNumber("0018")))
    assert _load_detail(database).friendly_name == "Büro 7"
    assert _find_names(database, "BÜRO") == ["Büro 7"]
    assert _find_names(database, "Device") == []


@pytest.mark.rule("rest-53")
def test_the_connectivity_timestamp_changes_only_with_the_connectivity(database: Database) -> None:
    for at, connected in ((1_000, True), (2_000, True), (3_000, False), (4_000, False)):
        _observe(database, DeviceObservation(device=MAC, at=at, connected=connected))
    connectivity = _load_detail(database).connectivity
    assert (connectivity.connected, connectivity.timestamp) == (False, "1970-01-01T00:00:03.000Z")


def test_an_older_report_changes_no_newer_state(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=2_000, rssi=-50))
    _observe(database, DeviceObservation(device=MAC, at=1_000, rssi=-90, battery=5))
    live = _load_detail(database).live
    assert (live.rssi, live.last_report_at) == (-50, "1970-01-01T00:00:02.000Z")
    assert live.battery == 5  # unknown before


def test_an_older_report_changes_no_newer_fact(database: Database) -> None:
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
    detail = _load_detail(database)
    assert (detail.connectivity.connected, detail.firmware_version) == (True, "2.0.0")
    assert detail.live.gateway == "d0cf5e000001"
    assert detail.model_number == "0018"  # unknown before


def test_two_processes_that_add_a_device_concurrently_lose_nothing(postgresql_database: Database) -> None:
    inserted, committed = threading.Event(), threading.Event()

    def insert_slowly(connection: Connection) -> None:
        registry.record_observations(
            connection, [DeviceObservation(device=MAC, at=1_000, gateway=Mac("d0cf5e000001"))]
        )
        inserted.set()
        committed.wait(1.0)  # the other transaction waits for this one, or is done

    def insert_concurrently() -> None:
        inserted.wait()
        observation = DeviceObservation(device=MAC, at=2_000, connected=True, model=ModelNumber("000F"))
        postgresql_database.write_now(registry.record_observations, [observation])
        committed.set()

    thread = threading.Thread(target=insert_concurrently)
    thread.start()
    postgresql_database.write_now(insert_slowly)
    thread.join()
    detail = _load_detail(postgresql_database)
    assert (detail.connectivity.connected, detail.model_number) == (True, "000F")
    assert detail.live.gateway == "d0cf5e000001"


def test_a_detected_silence_does_not_count_as_a_report(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1_000, connected=True))
    _observe(database, DeviceObservation(device=MAC, at=9_000, connected=False, heard=False))
    detail = _load_detail(database)
    assert (detail.connectivity.connected, detail.live.last_report_at) == (False, "1970-01-01T00:00:01.000Z")


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


@settings(max_examples=examples(30))
@given(before=st.lists(states, max_size=4), batch=st.lists(states, max_size=8))
def test_a_batch_has_the_same_result_as_single_observations(
    database: Database, before: list[DeviceObservation], batch: list[DeviceObservation]
) -> None:
    outcomes = []
    for groups in ([before, batch], [[observation] for observation in before + batch]):
        database.write_now(fleets.clear_fleet)
        for group in groups:
            database.write_now(registry.record_observations, group)
        outcomes.append(database.read_now(_load_all_rows))
    assert outcomes[0] == outcomes[1]


@pytest.mark.rule("rest-33", "rest-62")
def test_attached_labels_are_created_and_listed_in_order(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1))
    database.write_now(registry.attach_labels, [(text, MAC) for text in ("é", "b", "倉庫", "B", "b")], at=1)
    database.write_now(registry.attach_labels, [("b", MAC)], at=2)
    assert _load_detail(database).labels == ["B", "b", "é", "倉庫"]


@pytest.mark.rule("rest-41")
def test_a_deleted_device_is_added_again_by_its_next_report(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1, name="Lamp", rssi=-50))
    database.write_now(registry.attach_labels, [("a", MAC)], at=1)
    assert database.write_now(registry.delete_device, MAC)
    assert not database.write_now(registry.delete_device, MAC)
    with pytest.raises(NotFound):
        database.read_now(listing.load_device, MAC)
    assert database.read_now(lambda connection: connection.execute(device_label.select()).all()) == []
    assert _find_names(database, "Lamp") == []
    _observe(database, DeviceObservation(device=MAC, at=2))
    detail = _load_detail(database)
    assert (detail.friendly_name, detail.labels, detail.live.rssi) == ("Device 00a1", [], None)


def test_a_label_is_not_created_twice(database: Database) -> None:
    _observe(database, DeviceObservation(device=MAC, at=1), DeviceObservation(device=GATEWAY, at=1))
    for mac in (MAC, GATEWAY):
        database.write_now(registry.attach_labels, [("a", mac)], at=1)
    assert len(database.read_now(lambda connection: connection.execute(label.select()).all())) == 1
