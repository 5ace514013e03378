"""Topology, parents and paths over REST, from ingested reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import format_millis
from meshfleet.service.topology import store
from tests.mqtt.broker.running_broker import Clock
from tests.service.ingest.messages import A, B, P, Q, R, build_report, heartbeat
from tests.service.live.live_service import run_live_service

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Publish
    from tests.service.live.live_service import LiveService

MINUTE = 60_000
D, E = "c0ffee0000a1", "c0ffee0000b1"


def link(at: int, device: str, parent: str, rssi: int = -60, *, gateway: str = A, **fields: Any) -> Publish:
    """Build a reading of a link; without a channel it is established."""
    return build_report("rssi", at, device=device, gateway=gateway, parent=parent, rssi=rssi, **fields)


def claim(service: LiveService, *gateways: str) -> None:
    for gateway in gateways:
        assert service.admin.post("/api/v1/gateways", json={"mac": gateway}).status_code == 201


def get(service: LiveService, path: str, **query: Any) -> Any:
    response = service.viewer.get(path, params=query)
    assert response.status_code == 200, response.text
    return response.json()


def get_topology(service: LiveService, gateway: str = A, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = get(service, f"/api/v1/gateways/{gateway}/topology", **query)
    return found


def parents(topology: dict[str, Any]) -> dict[str, tuple[str | None, int | None]]:
    return {
        node["device"].removeprefix("bmac-"): (node["parent"], node["depth"]) for node in topology["nodes"]
    }


def ingest_tree(service: LiveService, at: int, **parent_of: str) -> None:
    """Ingest the mesh A - P - Q and P - R with a device at one of them, linked in both directions."""
    device_parent = parent_of.get("D", Q)
    service.ingest(
        link(at, A, P, -55),
        link(at, P, A, -55),
        link(at, Q, P, -75),
        link(at, P, Q, -75),
        link(at, R, P, -86),
        link(at, P, R, -86),
        link(at, D, device_parent, -60),
        link(at, D, R if device_parent == Q else Q, -70, channel=37),
    )
    service.run_in_loop(service.ingest_pipeline.flush())


@pytest.mark.rule("rest-89", "rest-238", "rest-239", "rest-240")
def test_the_topology_has_the_minute_under_way(service_on_each_database: LiveService) -> None:
    service, now = service_on_each_database, service_on_each_database.clock()
    claim(service, A)
    assert get_topology(service)["nodes"] == [
        {
            "device": f"bmac-{A}",
            "parent": None,
            "depth": 0,
            "rssi": None,
            "seenAt": None,
            "children": 0,
            "descendants": 0,
            "signal": None,
            "orphan": False,
            "cutsOff": 0,
            "load": 0.0,
        }
    ]
    ingest_tree(service, now)
    service.ingest(heartbeat(now, device=E))
    topology = get_topology(service)
    assert list(topology) == ["gateway", "at", "nodes", "weakLinks", "orphans", "singlePoints"]
    assert parents(topology) == {
        A: (None, 0),
        P: (A, 1),
        Q: (P, 2),
        R: (P, 2),
        D: (Q, 3),
        E: (None, None),
    }
    nodes = {node["device"].removeprefix("bmac-"): node for node in topology["nodes"]}
    assert [(nodes[each]["children"], nodes[each]["descendants"]) for each in (A, P, Q)] == [
        (1, 4),
        (2, 3),
        (1, 1),
    ]
    assert (nodes[Q]["rssi"], nodes[Q]["signal"], nodes[Q]["seenAt"]) == (-75, "fair", format_millis(now))
    assert topology["orphans"] == [f"bmac-{E}"]
    assert topology["weakLinks"] == [{"device": f"bmac-{R}", "parent": P, "rssi": -86, "signal": "weak"}]
    assert get(service, f"/api/v1/devices/bmac-{A}/parents")["items"] == []  # although P hears it
    # The device is also heard by R, so only P cuts off others.
    assert topology["singlePoints"] == [{"device": f"bmac-{P}", "cutsOff": 3}]


@pytest.mark.both_databases
@pytest.mark.rule("rest-89", "rest-238")
def test_the_topology_of_the_past_is_that_of_the_stored_minutes(
    service_on_each_database: LiveService,
) -> None:
    service, start = service_on_each_database, service_on_each_database.clock()
    claim(service, A, B)
    ingest_tree(service, start)
    service.clock.move(seconds=600)
    later = service.clock()
    service.ingest_and_flush(
        link(later, P, A),
        link(later, Q, P),
        link(later, D, B, gateway=B),
        link(later - 120_000, D, B, gateway=B),
    )
    assert parents(get_topology(service))[Q] == (P, 2)
    assert D not in parents(get_topology(service))
    assert parents(get_topology(service, B)) == {B: (None, 0), D: (B, 1)}
    service.clock.move(seconds=120)
    service.run_in_loop(service.ingest_pipeline.flush())
    past = get_topology(service, At=format_millis(start + 1000))
    assert past["at"] == format_millis(start + 1000)
    assert parents(past) == {A: (None, 0), P: (A, 1), Q: (P, 2), R: (P, 2), D: (Q, 3)}
    assert parents(get_topology(service, At=format_millis(start - MINUTE))) == {A: (None, 0)}


@pytest.mark.both_databases
def test_the_topology_is_known_after_a_restart(database: Database) -> None:
    with run_live_service(database) as service:
        claim(service, A)
        ingest_tree(service, service.clock())
        service.clock.move(seconds=120)
        service.run_in_loop(service.ingest_pipeline.flush())
        known, before = service.api.parent_tracker.parents, parents(get_topology(service))
        assert known == {
            int(P, 16): int(A, 16),
            **{int(each, 16): int(P, 16) for each in (Q, R)},
            int(D, 16): int(Q, 16),
        }
    clock = Clock()
    clock.move(seconds=120)
    with run_live_service(database, clock=clock) as restarted:
        restarted.api.parent_tracker.restore(database.read_now(store.load_known_parents))
        assert restarted.api.parent_tracker.parents == known
        assert parents(get_topology(restarted)) == before


@pytest.mark.both_databases
@pytest.mark.rule("rest-241", "rest-242", "rest-243")
def test_a_change_of_the_parent_is_stored_once_and_published(service_on_each_database: LiveService) -> None:
    service, now = service_on_each_database, service_on_each_database.clock()
    claim(service, A)
    with service.stream(Types="topology", Ids=f"bmac-{D}") as stream:
        ingest_tree(service, now)
        first = stream.next()["data"]
        assert first == {
            "device": f"bmac-{D}",
            "parent": Q,
            "previous": None,
            "gateway": A,
            "time": format_millis(now),
        }
        for _ in range(5):  # R and Q both report the device: no change
            service.clock.move(seconds=60)
            at = service.clock()
            service.ingest_and_flush(
                link(at, P, A), link(at, Q, P), link(at, R, P), link(at, D, Q), link(at, D, R)
            )
        for _ in range(3):  # then only R does
            service.clock.move(seconds=60)
            at = service.clock()
            service.ingest_and_flush(link(at, P, A), link(at, R, P), link(at, D, R))
        change = stream.next()["data"]
    assert (change["parent"], change["previous"]) == (R, Q)
    path = f"/api/v1/devices/bmac-{D}/parents"
    page = get(service, path, MaxResults=1)
    assert [(item["parent"], item["previous"], item["established"]) for item in page["items"]] == [
        (R, Q, True)
    ]
    rest = get(service, path, MaxResults=1, NextToken=page["nextToken"])
    assert [item["parent"] for item in rest["items"]] == [Q]
    assert rest["nextToken"] is None
    assert get(service, path, To=format_millis(now))["items"] == []
    # Readings with a past time change nothing.
    service.ingest_and_flush(*(link(now - 86_400_000 + n * MINUTE, D, Q) for n in range(4)))
    assert len(get(service, path)["items"]) == 2


@pytest.mark.rule("rest-241")
def test_a_device_that_is_only_heard_changes_for_a_much_better_signal(service: LiveService) -> None:
    claim(service, A)
    path = f"/api/v1/devices/bmac-{D}/parents"
    for rssi in (-70, -65, -60, -60):
        now = service.clock()
        service.ingest_and_flush(
            link(now, P, A),
            link(now, Q, A),
            link(now, D, P, -65, channel=37),
            link(now, D, Q, rssi, channel=38),
        )
        service.clock.move(seconds=60)
    assert [(each["parent"], each["established"]) for each in get(service, path)["items"]] == [(P, False)]
    now = service.clock()
    service.ingest_and_flush(
        link(now, D, P, -65, channel=37), link(now, D, Q, -55, channel=38), link(now, Q, A)
    )
    assert [each["parent"] for each in get(service, path)["items"]] == [Q, P]


@pytest.mark.rule("rest-244")
def test_a_path_has_the_hops_and_the_alternatives(service: LiveService) -> None:
    claim(service, A, B)
    now = service.clock()
    ingest_tree(service, now)
    service.ingest_and_flush(
        link(now, D, B, -80, gateway=B, channel=39), link(now, D, E, -65, channel=39), link(now, E, D, -65)
    )
    path = get(service, f"/api/v1/devices/bmac-{D}/path")
    assert [(hop["device"], hop["parent"], hop["rssi"], hop["signal"]) for hop in path["hops"]] == [
        (f"bmac-{D}", Q, -60, "good"),
        (f"bmac-{Q}", P, -75, "fair"),
        (f"bmac-{P}", A, -55, "good"),
    ]
    assert (path["device"], path["gateway"], path["complete"]) == (f"bmac-{D}", A, True)
    found = [
        (each["parent"], each["difference"], each["hasPath"], each["depth"]) for each in path["alternatives"]
    ]
    # E hangs on the device itself, so it is no way out.
    assert found == [(R, -10.0, True, 3), (B, -20.0, True, None), (E, -5.0, False, 5)]
    unheard = service.new_device()
    assert get(service, f"/api/v1/devices/{unheard}/path")["gateway"] is None


def test_unknown_gateways_devices_and_times_are_refused(service: LiveService) -> None:
    claim(service, A)
    for path in (f"gateways/{B}/topology", "devices/bmac-0123456789ab/parents", "devices/bmac-xyz/path"):
        assert service.viewer.get(f"/api/v1/{path}").status_code == 404
    response = service.viewer.get(f"/api/v1/gateways/{A}/topology", params={"At": "yesterday"})
    assert (response.status_code, response.json()["errors"][0]["field"]) == (400, "At")
    future = get_topology(service, At="9999-01-01T00:00:00Z")["at"]
    assert future < "9999"


@pytest.mark.both_databases
@pytest.mark.rule("rest-241")
def test_parent_changes_are_deleted_with_the_links(service_on_each_database: LiveService) -> None:
    service, now = service_on_each_database, service_on_each_database.clock()
    claim(service, A)
    service.api.parent_tracker.retention_ms = 3_600_000
    service.ingest_and_flush(link(now, P, A))
    path = f"/api/v1/devices/bmac-{P}/parents"
    assert len(get(service, path)["items"]) == 1
    service.clock.move(seconds=3602)
    service.run_in_loop(service.ingest_pipeline.flush())
    assert get(service, path)["items"] == []
