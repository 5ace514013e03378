"""Candidates for reading metadata, and the scan of a large fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert

from meshfleet.db.tables import device
from meshfleet.protocol.ids import Mac, ModelNumber, Version, mac_to_int
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.gateways import store
from meshfleet.service.ingest.device_facts import FIRMWARE, HARDWARE, MODEL, VARIANT
from meshfleet.service.metadata import candidates
from meshfleet.service.metadata.candidates import MetadataCandidate

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database

pytestmark = pytest.mark.both_databases

G, D = Mac("02005e000001"), Mac("02005e0000aa")
NOW = 1_000_000
FACTS: dict[str, Any] = {
    "model": ModelNumber("2011"),
    "firmware": Version(1, 2, 3),
    "hardware": Version(1, 0, 0),
    "variant": 0,
}


def observe(database: Database, mac: Mac, *, at: int = 0, **facts: Any) -> None:
    database.write_now(registry.record_observations, [DeviceObservation(device=mac, at=at, **facts)])


@pytest.fixture
def site(database: Database) -> Database:
    """Add a connected gateway whose metadata is complete."""
    database.write_now(store.claim_gateway, G, name=None, by=COMMAND_LINE, now=0)
    observe(database, G, gateway=G, connected=True, **FACTS)
    return database


def find_all(database: Database, now: int = NOW) -> list[MetadataCandidate]:
    return candidates.merge_candidates(
        database.read_now(candidates.find_candidates, identifier, after=-1, now=now)
        for identifier in candidates.MISSING_CONDITIONS
    )


def test_all_properties_of_a_device_without_metadata_are_read(site: Database) -> None:
    observe(site, D, gateway=G, connected=True)
    assert find_all(site) == [
        MetadataCandidate(mac_to_int(D), mac_to_int(G), (VARIANT, MODEL, FIRMWARE, HARDWARE))
    ]


@pytest.mark.parametrize(
    ("missing", "identifier"), [("model", MODEL), ("firmware", FIRMWARE), ("hardware", HARDWARE)]
)
def test_only_missing_properties_are_read(site: Database, missing: str, identifier: int) -> None:
    observe(site, D, gateway=G, connected=True, **{k: v for k, v in FACTS.items() if k != missing})
    assert find_all(site) == [MetadataCandidate(mac_to_int(D), mac_to_int(G), (identifier,))]


def test_a_device_with_complete_metadata_is_no_candidate(site: Database) -> None:
    observe(site, D, gateway=G, connected=True, **FACTS)
    assert find_all(site) == []


def test_a_device_known_for_less_than_a_minute_is_no_candidate(site: Database) -> None:
    observe(site, D, at=NOW - 59_999, gateway=G, connected=True)
    assert find_all(site) == []
    assert len(find_all(site, NOW + 1)) == 1


def test_a_disconnected_device_is_no_candidate(site: Database) -> None:
    observe(site, D, gateway=G, connected=False)
    assert find_all(site) == []


def test_a_device_behind_a_disconnected_gateway_is_no_candidate(site: Database) -> None:
    observe(site, D, gateway=G, connected=True)
    observe(site, G, at=1, connected=False)
    assert find_all(site) == []


def test_a_device_behind_an_unclaimed_gateway_is_no_candidate(site: Database) -> None:
    observe(site, D, gateway=G, connected=True)
    site.write_now(store.release_gateway, G, by=COMMAND_LINE, now=0)
    assert find_all(site) == []


def test_a_device_without_a_gateway_is_no_candidate(site: Database) -> None:
    observe(site, D, connected=True)
    assert find_all(site) == []


@pytest.mark.parametrize("former_gateway", [None, G, D])
def test_a_gateway_is_read_through_itself(site: Database, former_gateway: Mac | None) -> None:
    other = Mac("02005e000002")
    site.write_now(store.claim_gateway, other, name=None, by=COMMAND_LINE, now=0)
    facts: dict[str, Any] = {} if former_gateway is None else {"gateway": former_gateway}
    observe(site, other, connected=True, **facts)
    (candidate,) = find_all(site)
    assert (candidate.device, candidate.gateway) == (mac_to_int(other), mac_to_int(other))


def _insert_devices(connection: Connection, count: int) -> None:
    """Insert devices without metadata, of which every tenth is connected."""
    row = {"name": "", "name_key": "", "named": False, "model": 0, "variant": 0, "firmware": "0.0.0"}
    row |= {"beta": 0, "hardware": "0.0.0", "gateway": mac_to_int(G), "connected_at": 0, "created_at": 0}
    rows = [{**row, "id": number, "connected": number % 10 == 0} for number in range(count)]
    connection.execute(insert(device), rows)


def test_a_scan_finds_each_device_once_in_pages_and_starts_again(site: Database) -> None:
    site.write_now(_insert_devices, 2000)
    for identifier in candidates.MISSING_CONDITIONS:
        after, devices, pages = -1, list[int](), 0
        while pages == 0 or after != -1:
            page, after = site.read_now(candidates.find_candidates, identifier, after=after, now=NOW)
            assert len(page) <= candidates.PAGE_ROWS
            devices += [each.device for each in page]
            pages += 1
        assert devices == list(range(0, 2000, 10))
        assert pages == 7


def test_a_page_is_read_from_an_index_without_sorting(sqlite_database: Database) -> None:
    for identifier, index in ((MODEL, "model"), (FIRMWARE, "firmware"), (HARDWARE, "hardware")):
        plan = sqlite_database.read_now(_explain_query, identifier)
        assert f"SEARCH device USING INDEX ix_device_{index}" in plan, plan
        assert "TEMP B-TREE" not in plan
        assert "SCAN" not in plan


def _explain_query(connection: Connection, identifier: int) -> str:
    query = candidates.build_candidate_query(identifier, after=5)
    text = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
    return "\n".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}"))
