"""Resources of a `Fleet`, with a running service."""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from meshfleet.client import ApiKeyKind, Role
from meshfleet.errors import NotFound
from meshfleet.errors.protocol import MalformedMac, MalformedText
from meshfleet.protocol.times import from_millis
from tests.row_tables import each_row
from tests.service.http.running_service import PASSWORD
from tests.service.ingest.messages import A, P, Q, build_report, heartbeat, link, temperature

if TYPE_CHECKING:
    from meshfleet.client import Fleet
    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio

LABELS = ["2nd floor/north", "50 %", "a+b&c=d?e#f", "Küche ☕", "..a", "%2F"]


async def test_a_device_can_be_shown_renamed_and_deleted(service: LiveService, fleet: Fleet) -> None:
    device = service.new_device()
    assert (await fleet.devices.show(device)).id == device
    assert (await fleet.devices.rename(device, " Lobby ☕ ")).friendly_name == "Lobby ☕"
    assert (await fleet.devices.show(device)).friendly_name == "Lobby ☕"
    await fleet.devices.forget(device)
    with pytest.raises(NotFound):
        await fleet.devices.show(device)


@pytest.mark.rule("id-3", "rest-76")
@each_row("template", ["{mac}", "{MAC}", "bmac-{mac}", "BMAC-{MAC}"])
async def test_a_device_can_be_named_by_mac_or_id_in_either_case(
    service: LiveService, fleet: Fleet, template: str
) -> None:
    device = service.new_device()
    mac = device.removeprefix("bmac-")
    name = template.format(mac=mac, MAC=mac.upper())
    assert (await fleet.devices.show(name)).id == device
    assert [each.id async for each in fleet.devices.list(ids=[name])] == [device]


async def test_an_invalid_device_id_is_never_sent(fleet: Fleet) -> None:
    for name in ("", "..", "summary", "c0ffee", "bmac-c0ffee00000g"):
        with pytest.raises(MalformedMac):
            await fleet.devices.forget(name)


async def test_filters_select_devices(service: LiveService, fleet: Fleet) -> None:
    first, second, third = (service.new_device() for _ in range(3))
    await fleet.labels.add("chosen", [first, second])
    await fleet.labels.add("also", second)
    await fleet.devices.rename(first, "Zebra")

    async def list_ids(**filters: object) -> list[str]:
        return [each.id async for each in fleet.devices.list(**filters)]  # type: ignore[arg-type] # keywords of list

    assert await list_ids(labels="chosen") == [first, second]
    assert await list_ids(labels=("chosen", "also")) == [second]
    assert await list_ids(ids=(first, third), sort="-id") == [third, first]
    assert await list_ids(ids=(first, second), friendly_name="zeb") == [first]
    assert await list_ids(labels="chosen", connected=True) == []
    assert await list_ids(labels="chosen", connected=False) == [first, second]
    assert await list_ids(labels="chosen", gateway=A) == []
    assert await list_ids(labels="chosen", model_number="0000") == [first, second]
    assert await list_ids(labels="chosen", firmware_version="1.0.0") == []
    assert await list_ids(labels="chosen", hardware_version="1.0") == []
    assert (await fleet.devices.summary(labels="chosen")).total == 2
    assert (await fleet.devices.summary(labels=["chosen", "also"], connected=None)).total == 1


async def test_a_misspelt_filter_is_refused(fleet: Fleet) -> None:
    with pytest.raises(TypeError, match="conected"):
        fleet.devices.list(conected=True)  # type: ignore[call-arg] # misspelt on purpose
    with pytest.raises(TypeError, match="conected"):
        await fleet.devices.summary(conected=True)  # type: ignore[call-arg]


async def test_the_live_state_is_included_on_request(service: LiveService, fleet: Fleet) -> None:
    device = service.new_device()
    [plain] = [each async for each in fleet.devices.list(ids=device)]
    [live] = [each async for each in fleet.devices.list(ids=device, live=True)]
    assert not plain.live
    assert live.live
    assert live.live.updating is False


@pytest.mark.rule("rest-68")
@each_row("label", LABELS)
async def test_any_label_can_be_attached_to_a_device_and_removed(
    service: LiveService, fleet: Fleet, label: str
) -> None:
    device = service.new_device()
    assert (await fleet.devices.label(device, label)).labels == [label]
    assert [each.id async for each in fleet.devices.list(labels=[label])] == [device]
    assert (await fleet.devices.unlabel(device, label)).labels == []
    assert label in [each.label async for each in fleet.labels.list()]
    await fleet.labels.remove(label)
    assert label not in [each.label async for each in fleet.labels.list()]


@each_row("label", ["", ".", "..", " .. ", "a\nb"])
async def test_an_invalid_label_is_refused(service: LiveService, fleet: Fleet, label: str) -> None:
    device = service.new_device()
    with pytest.raises(MalformedText):
        await fleet.devices.unlabel(device, label)
    with pytest.raises(MalformedText):
        await fleet.labels.remove(label)
    assert (await fleet.devices.show(device)).id == device


async def test_a_gateway_can_be_claimed_shown_rotated_and_released(
    service: LiveService, fleet: Fleet
) -> None:
    mac = service.new_mac()
    claim = await fleet.gateways.claim(mac.upper(), "Head office")
    assert (claim.mac, claim.username) == (mac, mac)
    assert (await fleet.gateways.show(f"bmac-{mac}")).friendly_name == "Head office"
    assert (await fleet.gateways.rotate(mac)).password != claim.password
    assert mac in [each.mac async for each in fleet.gateways.list()]
    await fleet.gateways.release(mac)
    with pytest.raises(NotFound):
        await fleet.gateways.show(mac)


async def test_samples_are_listed_newest_first_and_as_csv_oldest_first(
    service: LiveService, fleet: Fleet
) -> None:
    device, at = service.new_mac(), service.clock()
    reports = [temperature(at + number, 20 + number, device=device, seq=number) for number in range(3)]
    service.ingest_and_flush(
        *reports, build_report("event-decoded/button", at, device=device, seq=1, value=True)
    )
    values = [each.value async for each in fleet.samples.list(device, kinds="measurement")]
    assert values == [22, 21, 20]
    since = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at + 1)
    later = [each async for each in fleet.samples.list(device, identifier="temperature", since=since)]
    assert [each.value for each in later] == [22, 21]
    earlier = fleet.samples.list(device, kinds=["measurement"], until=later[1].time)
    assert [each.value async for each in earlier] == [20]
    lines = [line async for line in fleet.samples.csv(device, kinds=("measurement",))]
    assert [row["value"] for row in csv.DictReader(lines)] == ["20", "21", "22"]


async def test_a_series_aggregates_samples(service: LiveService, fleet: Fleet) -> None:
    device, at = service.new_mac(), service.clock() - 60_000
    service.ingest_and_flush(
        *(temperature(at + number, 20 + number, device=device, seq=number) for number in range(3))
    )
    series = await fleet.samples.series(device, "temperature", points=1)
    assert (series.unit, [(each.count, each.mean) for each in series.items]) == ("°C", [(3, 21)])


async def test_links_list_the_parents_of_a_device_after_a_full_minute(
    service: LiveService, fleet: Fleet
) -> None:
    device, at = service.new_mac(), service.clock() // 60_000 * 60_000
    service.ingest_and_flush(
        link(at, -70, P, device=device),
        link(at + 1, -50, P, device=device, unreachable=True),
        link(at, -60, Q, device=device),
    )
    service.clock.move(seconds=125)
    service.ingest_and_flush(heartbeat(service.clock(), device=device))
    links = await fleet.samples.links(device, points=1)
    parents = [(each.parent, each.rssi, each.unreachable, each.gateway) for each in links.items]
    assert parents == [(P, -50, True, A), (Q, -60, False, A)]
    assert [(each.count, each.mean) for each in links.items[0].series] == [(2, -60)]
    later = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=service.clock() - 60_000)
    assert (await fleet.samples.links(device, since=later)).items == []


async def test_rejects_are_listed_for_all_gateways_and_for_one(service: LiveService, fleet: Fleet) -> None:
    gateway, other = service.new_mac(), service.new_mac()
    for each in (gateway, other):
        service.ingest_and_flush(build_report("heartbeat", service.clock(), gateway=each, seq=999, status=0))
    assert {gateway, other} <= {each.gateway async for each in fleet.samples.rejects()}
    assert [each.gateway async for each in fleet.samples.rejects(gateway.upper())] == [gateway]


async def test_connectivity_changes_and_gaps_of_a_device_are_listed(
    service: LiveService, fleet: Fleet
) -> None:
    device = service.new_device()
    service.ingest_and_flush(heartbeat(service.clock(), device=device.removeprefix("bmac-")))
    assert [
        each async for each in fleet.devices.connectivity(device)
    ] == []  # presence tracking does not run here
    assert [each async for each in fleet.devices.gaps(device)] == []
    with pytest.raises(NotFound):
        [each async for each in fleet.devices.gaps(service.new_mac())]


async def test_topology_parents_and_path_are_those_of_the_links(service: LiveService, fleet: Fleet) -> None:
    gateway, device = service.new_mac(), service.new_mac()
    await fleet.gateways.claim(gateway)
    at = service.clock()
    reading = build_report("rssi", at, device=device, gateway=gateway, parent=gateway, rssi=-60)
    service.ingest_and_flush(reading)
    mesh = await fleet.gateways.topology(gateway)
    assert [(node.parent, node.depth) for node in mesh.nodes] == [(None, 0), (gateway, 1)]
    past = from_millis(at - 86_400_000)
    assert len((await fleet.gateways.topology(gateway, at=past)).nodes) == 1
    assert [each.parent async for each in fleet.devices.parents(device)] == [gateway]
    assert [each async for each in fleet.devices.parents(device, until=past)] == []
    assert [hop.rssi for hop in (await fleet.devices.path(device)).hops] == [-60]


async def test_the_catalogue_lists_identifiers_and_products(fleet: Fleet) -> None:
    catalogue = await fleet.catalogue()
    [temperature] = [each for each in catalogue.identifiers if each.identifier == "8800"]
    assert (temperature.name, temperature.unit, temperature.kinds) == ("temperature", "°C", ["measurement"])
    assert "MT MeshConnect 2011" in [each.name for each in catalogue.products]


async def test_users_can_be_added_changed_and_removed(service: LiveService, fleet: Fleet) -> None:
    name = service.new_name("person")
    assert (await fleet.users.add(name, PASSWORD, "viewer")).role is Role.VIEWER
    assert (await fleet.users.change(name, role=Role.OPERATOR)).role is Role.OPERATOR
    assert (await fleet.users.show(name)).username == name
    assert name in [each.username async for each in fleet.users.list()]
    await fleet.users.remove(name)
    with pytest.raises(NotFound):
        await fleet.users.show(name)


async def test_api_keys_can_be_issued_and_revoked(service: LiveService, fleet: Fleet) -> None:
    name, tomorrow = service.new_name("key"), datetime.now(UTC) + timedelta(days=1)
    issued = await fleet.api_keys.issue(name, "viewer", tomorrow)
    [listed] = [each async for each in fleet.api_keys.list() if each.name == name]
    assert (listed.id, listed.expires_at) == (issued.id, issued.expires_at)
    home = await fleet.api_keys.issue(f"{name} 2", "operator", kind="homeassistant")
    assert home.kind is ApiKeyKind.HOMEASSISTANT
    await fleet.api_keys.revoke(issued.id)
    assert name not in [each.name async for each in fleet.api_keys.list()]


async def test_the_audit_log_can_be_filtered(service: LiveService, fleet: Fleet) -> None:
    device, me = service.new_device(), await fleet.me()
    await fleet.devices.rename(device, "Zebra")
    rows = [each async for each in fleet.audit.list(actor=me.username, action="device.rename", target=device)]
    assert [each.action for each in rows] == ["device.rename"]
    assert [each async for each in fleet.audit.list(actor="no-such-user")] == []
    [row] = rows
    assert [each async for each in fleet.audit.list(target=device, since=row.time)] == rows
    assert [each async for each in fleet.audit.list(target=device, until=row.time)] == []


async def test_health_readiness_metrics_and_documents_are_available(fleet: Fleet) -> None:
    assert (await fleet.operations.health()).status == "ok"
    assert (await fleet.operations.ready()).status == "ready"
    assert "meshfleet" in await fleet.operations.metrics()
    assert (await fleet.operations.openapi())["openapi"].startswith("3.1")
    assert (await fleet.operations.asyncapi())["asyncapi"].startswith("3.0")
