"""Pages of the device list, their tokens and their order."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Mac
from meshfleet.service.devices.model import DeviceObservation
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.http.running_service import RunningService

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
SORTS = ["id", "-id", "friendlyName", "-friendlyName", "connectivity", "-connectivity"]


def _get_page(service: RunningService, path: str = "/api/v1/devices", **query: Any) -> dict[str, Any]:
    response = service.admin.get(path, params=query)
    assert response.status_code == 200, response.text
    assert list(response.json()) == ["items", "nextToken"]
    return dict(response.json())


def _list_all_ids(
    service: RunningService, after_page: Callable[[int], None] = lambda _: None, **query: Any
) -> list[str]:
    """Return the ids of all pages; `after_page` is called after each page with its number."""
    page = _get_page(service, **query)
    ids = [item["id"] for item in page["items"]]
    number = 0
    while page["nextToken"] is not None:
        assert len(page["items"]) <= query["MaxResults"]
        number += 1
        after_page(number)
        page = _get_page(service, **query, NextToken=page["nextToken"])
        ids += [item["id"] for item in page["items"]]
    return ids


def _get_refusal(service: RunningService, path: str = "/api/v1/devices", **query: Any) -> tuple[int, str]:
    response = service.admin.get(path, params=query)
    return response.status_code, response.json().get("code", "")


@pytest.fixture(scope="module")
def gateway(service: RunningService) -> Mac:
    """Create a gateway with seven devices, with equal names and different connectivity."""
    gateway = service.new_mac()
    names = ["b", "A", "a", "É", "B", "ß", "z"]
    start = service.clock()
    for number, name in enumerate(names):
        at, mac = start - number % 3, service.new_mac()
        service.observe(
            DeviceObservation(device=mac, at=at, gateway=gateway, name=name, connected=number % 2 == 0)
        )
    return gateway


def _create_gateway(service: RunningService, number: int) -> tuple[Mac, list[str]]:
    """Create a gateway with devices whose MACs are two apart; return it with the device ids."""
    gateway, first = service.new_mac(), (0xD00000000000 + (int(service.new_mac(), 16) & 0xFFFF) * 0x10000)
    macs = [Mac(f"{first + 2 * each:012x}") for each in range(1, number + 1)]
    service.observe(*(DeviceObservation(device=mac, at=service.clock(), gateway=gateway) for mac in macs))
    return gateway, [f"bmac-{mac}" for mac in macs]


def _get_token(service: RunningService, gateway: Mac, **query: Any) -> str:
    token = _get_page(service, Gateway=gateway, MaxResults=2, **query)["nextToken"]
    assert isinstance(token, str)
    return token


@pytest.mark.both_databases
@pytest.mark.rule("rest-16", "rest-20", "rest-24", "rest-37")
@each_row("sort", SORTS)
@each_row("limit", [1, 3, 6, 7, 8])
def test_the_pages_together_are_the_list(
    service: RunningService, gateway: Mac, sort: str, limit: int
) -> None:
    complete = _get_page(service, Gateway=gateway, Sort=sort)
    assert (len(complete["items"]), complete["nextToken"]) == (7, None)
    listed = _list_all_ids(service, Gateway=gateway, Sort=sort, MaxResults=limit)
    assert listed == [item["id"] for item in complete["items"]]


@pytest.mark.both_databases
@pytest.mark.rule("rest-37")
def test_lists_are_sorted_as_requested(service: RunningService, gateway: Mac) -> None:
    def listed(**query: str) -> list[dict[str, Any]]:
        return list(_get_page(service, Gateway=gateway, **query)["items"])

    by_id = listed()
    assert [item["id"] for item in by_id] == sorted(item["id"] for item in by_id)
    assert [item["friendlyName"] for item in listed(Sort="friendlyName")] == [
        "A",
        "a",
        "b",
        "B",
        "ß",
        "z",
        "É",
    ]
    states = [tuple(item["connectivity"].values()) for item in listed(Sort="connectivity")]
    assert states == sorted(states)
    assert {connected for connected, _ in states} == {False, True}
    for sort in ("id", "friendlyName", "connectivity"):
        assert listed(Sort=f"-{sort}") == listed(Sort=sort)[::-1], sort


@pytest.mark.rule("rest-23", "rest-24")
def test_a_page_has_a_hundred_items_by_default(service: RunningService) -> None:
    gateway, devices = _create_gateway(service, 101)
    page = _get_page(service, Gateway=gateway)
    assert [item["id"] for item in page["items"]] == devices[:100]
    rest = _get_page(service, Gateway=gateway, NextToken=page["nextToken"])
    assert ([item["id"] for item in rest["items"]], rest["nextToken"]) == (devices[100:], None)


@pytest.mark.rule("rest-23")
@each_row(
    "value",
    [
        "0",
        "1001",
        "-1",
        "",
        "x",
        "1.5",
        "1.0",
        "1e1",
        "1_0",
        "+5",
        " 5",
        "5 ",
        "true",
        "null",
        "9" * 40,
        "\uff15",
    ],
)
@each_row("path", ["/api/v1/devices", "/api/v1/labels", "/api/v1/gateways"])
def test_an_invalid_number_of_items_is_refused(service: RunningService, path: str, value: str) -> None:
    response = service.viewer.get(path, params={"MaxResults": value})
    assert response.status_code == 400, response.text
    assert [each["field"] for each in response.json()["errors"]] == ["MaxResults"]


@pytest.mark.rule("rest-17", "rest-18")
def test_a_token_is_valid_for_any_page_size_and_spelling_of_the_filters(
    service: RunningService, gateway: Mac
) -> None:
    ids = [item["id"] for item in _get_page(service, Gateway=gateway)["items"]]
    first = _get_page(service, Gateway=gateway, Ids=ids, MaxResults=2)
    token = first["nextToken"]
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)
    again = {
        "gateway": f"BMAC-{gateway.upper()}",
        "IDS": [*ids[::-1], ids[0]],
        "nexttoken": token,
        "sort": "id",
    }
    for limit, expected in [(1, ids[2:3]), (4, ids[2:6]), (1000, ids[2:])]:
        assert [item["id"] for item in _get_page(service, **again, maxresults=limit)["items"]] == expected


@pytest.mark.rule("rest-18", "rest-19")
@each_row(
    "other",
    [
        {"Sort": "-id"},
        {"Sort": "friendlyName"},
        {"Connected": "true"},
        {"Connected": "false"},
        {"Label": "x"},
        {"ModelNumber": "0000"},
        {"FirmwareVersion": "0.0.0"},
        {"HardwareVersion": "0.0.0"},
        {"FriendlyName": "a"},
        {"Gateway": "0123456789ab"},
        {"Ids": "bmac-0123456789ab"},
    ],
)
def test_a_token_of_other_filters_is_refused(
    service: RunningService, gateway: Mac, other: dict[str, str]
) -> None:
    token = _get_token(service, gateway)
    assert _get_refusal(service, **{"Gateway": gateway, **other, "NextToken": token}) == (
        400,
        "invalid-token",
    )
    assert _get_refusal(service, **other, NextToken=token) == (400, "invalid-token")
    assert _get_refusal(service, NextToken=token) == (400, "invalid-token")


@pytest.mark.rule("rest-19")
def test_a_token_of_another_list_is_refused(service: RunningService) -> None:
    for _ in range(2):
        service.operator.post("/api/v1/labels", json={"label": service.new_name("label")})
        service.admin.post("/api/v1/gateways", json={"mac": service.new_mac()})
        service.new_user()
    lists = ["devices", "labels", "gateways", "audit", "users", "api-keys"]
    tokens = {name: _get_page(service, f"/api/v1/{name}", MaxResults=1)["nextToken"] for name in lists}
    assert None not in tokens.values()
    for name in lists:
        for other, token in tokens.items():
            if other != name:
                refusal = _get_refusal(service, f"/api/v1/{name}", NextToken=token)
                assert refusal == (400, "invalid-token"), (name, other)


@pytest.mark.rule("rest-18", "rest-19")
def test_no_bit_of_a_token_can_be_changed(service: RunningService, gateway: Mac) -> None:
    token = _get_token(service, gateway)
    for position, character in enumerate(token):
        for bit in range(6):
            other = ALPHABET[ALPHABET.index(character) ^ 1 << bit]
            forged = token[:position] + other + token[position + 1 :]
            assert _get_refusal(service, Gateway=gateway, NextToken=forged) == (400, "invalid-token"), (
                position,
                bit,
            )


@pytest.mark.rule("rest-18", "rest-19")
@each_row("name", ["x", "xy", "xyz"])
def test_a_token_of_any_length_has_one_encoding(service: RunningService, name: str) -> None:
    gateway = service.new_mac()
    service.new_device(gateway=gateway, name=name)
    service.new_device(gateway=gateway, name="zz")
    query: dict[str, Any] = {"Gateway": gateway, "Sort": "friendlyName", "MaxResults": 1}
    token = _get_page(service, **query)["nextToken"]
    assert len(_get_page(service, **query, NextToken=token)["items"]) == 1
    forged = [token[:-1] + character for character in ALPHABET if character != token[-1]]
    forged += [token + "=" * number for number in (1, 2, 3, 4)]
    forged += [f" {token}", f"{token}\n", f"{token}A", token[1:], token.swapcase(), f"{token}.{token}"]
    accepted = [
        each for each in forged if _get_refusal(service, **query, NextToken=each) != (400, "invalid-token")
    ]
    assert accepted == []


@pytest.mark.rule("rest-18", "rest-19")
def test_an_invalid_token_is_refused(service: RunningService, gateway: Mac) -> None:
    token = _get_token(service, gateway)
    unsigned = [
        base64.urlsafe_b64encode(bytes(16) + where).decode() for where in (b"[0]", b"", b"null", b'["')
    ]
    invalid = ["", "A", "null", "0", "é", "\N{DOOR}", "%", "../", "A" * 5000, *unsigned]
    invalid += [token[:length] for length in range(1, len(token))]
    for each in invalid:
        assert _get_refusal(service, Gateway=gateway, NextToken=each) == (400, "invalid-token"), each


@pytest.mark.both_databases
@pytest.mark.rule("rest-20", "rest-21")
@pytest.mark.parametrize("sort", ["id", "-id"])
def test_devices_added_and_deleted_during_paging_cause_no_repeats_or_gaps(
    service: RunningService, sort: str
) -> None:
    gateway, devices = _create_gateway(service, 12)
    deleted: list[str] = []
    added: list[str] = []

    def disturb(number: int) -> None:
        """Delete devices of listed and later pages, add neighbors of them, and rename others."""
        already_listed = devices[2 * number - 1] if sort == "id" else devices[-2 * number]
        for device in {devices[0], already_listed, devices[6]} - set(deleted):
            service.admin.delete(f"/api/v1/devices/{device}")
            deleted.append(device)
        for device in (devices[0], already_listed, devices[9]):
            mac = Mac(f"{int(device[5:], 16) + 1:012x}")
            service.observe(
                DeviceObservation(device=mac, at=service.clock(), gateway=gateway, connected=True)
            )
            added.append(f"bmac-{mac}")
        body = {"name": service.new_name("another")}
        service.operator.put(f"/api/v1/devices/{devices[10]}/friendly-name", json=body)

    listed = _list_all_ids(service, disturb, Gateway=gateway, Sort=sort, MaxResults=2)
    assert len(listed) == len(set(listed))
    assert listed == sorted(listed, reverse=sort == "-id")
    assert set(devices) - set(deleted) <= set(listed) <= set(devices) | set(added)


@pytest.mark.both_databases
@pytest.mark.rule("rest-22")
def test_a_rename_during_paging_moves_only_the_renamed_device(service: RunningService) -> None:
    gateway, devices = _create_gateway(service, 9)

    def disturb(number: int) -> None:
        body = {"name": "Aaa" if number % 2 else "Zzz"}
        service.operator.put(f"/api/v1/devices/{devices[4]}/friendly-name", json=body)

    listed = _list_all_ids(service, disturb, Gateway=gateway, Sort="friendlyName", MaxResults=2)
    assert [each for each in listed if each != devices[4]] == [each for each in devices if each != devices[4]]


@pytest.mark.both_databases
@pytest.mark.rule("rest-16", "rest-20")
def test_a_page_after_which_all_devices_were_deleted_is_empty(service: RunningService) -> None:
    gateway, devices = _create_gateway(service, 4)
    token = _get_token(service, gateway)
    for device in devices:
        service.admin.delete(f"/api/v1/devices/{device}")
    assert _get_page(service, Gateway=gateway, NextToken=token) == {"items": [], "nextToken": None}
