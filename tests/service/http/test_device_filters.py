"""The filters of the list of devices: each alone, all together, and what is wrong with them."""

from __future__ import annotations

import unicodedata
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Mac, ModelNumber, Version
from meshfleet.service.devices import registry
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from tests.service.http.running_service import RunningService

    Query = Sequence[tuple[str, str]]

FIRST, SECOND = Mac("aa00000000f1"), Mac("aa00000000f2")
"""Gateways."""

ONES = {
    "Label": "red",
    "Connected": "true",
    "ModelNumber": "000F",
    "FirmwareVersion": "2.4.1",
    "HardwareVersion": "1.7",
    "FriendlyName": "north",
    "Gateway": FIRST,
}
"""What a device has that is chosen by a filter."""

MALFORMED = {
    "Label": ["", " ", ".", "..", "x" * 65, "a\0", "a\nb"],
    "Connected": ["", "null", "yes", "no", "on", "t", "2", "-1", " true", "truefalse", "None"],
    "ModelNumber": [
        "",
        "15",
        "00F",
        "0000F",
        "0x0F",
        "00 F",
        "zzzz",
        "\uff10\uff10\uff10\uff11",
        "000F,0018",
    ],
    "FirmwareVersion": [
        "",
        "2",
        "2.",
        "2.4.1.0",
        "v2.4.1",
        "2.4.1-beta",
        "2.4.1-beta.0",
        "2.4.1-beta.256",
        "-1.0.0",
    ],
    "HardwareVersion": ["", "x", "1..0", "1.0-beta.1", "1,0", "999999.0"],
    "FriendlyName": [""],
    "Gateway": ["", "aa", "bmac-", "aa:00:00:00:00:f1", "aa00000000fg", "aa00000000f1 "],
    "Ids": ["", "aa00000000f1", "bmac-AA00000000F1", "bmac-aa00000000f1,bmac-aa00000000f2", "*"],
    "Sort": ["", "ID", "--id", "+id", "name", "id,-id", "friendlyname", "labels"],
}


def _ask(service: RunningService, query: Query) -> httpx.Response:
    return service.viewer.get("/api/v1/devices", params=list(query))


def _ids(service: RunningService, query: Query) -> list[str]:
    answer = _ask(service, [*query, ("MaxResults", "1000")])
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


def _make(service: RunningService, has: frozenset[str]) -> str:
    """A device that meets these filters and no others."""
    device = service.new_device(
        connected="Connected" in has,
        model=ModelNumber("000F" if "ModelNumber" in has else "0018"),
        firmware=Version(2, 4, 1) if "FirmwareVersion" in has else Version(2, 4, 10),
        hardware=Version.parse("1.7" if "HardwareVersion" in has else "1.70"),
        gateway=FIRST if "Gateway" in has else SECOND,
        name="Up north" if "FriendlyName" in has else "nort hern",
    )
    if "Label" in has:
        service.operator.put(f"/api/v1/devices/{device}/labels/red")
    return device


@pytest.fixture(scope="module")
def fleet(service: RunningService) -> dict[str, frozenset[str]]:
    """Devices that meet all filters, all but one, one alone, or none; and which filters those are."""
    every = frozenset(ONES)
    kinds = [
        every,
        frozenset[str](),
        *(every - {name} for name in ONES),
        *(frozenset({name}) for name in ONES),
    ]
    return {_make(service, has): has for has in kinds}


@pytest.mark.both_databases
@pytest.mark.rule("rest-34", "rest-35")
def test_a_device_is_listed_only_if_it_meets_all_filters(
    service: RunningService, fleet: dict[str, frozenset[str]]
) -> None:
    for number in (0, 1, 2, len(ONES) - 1, len(ONES)):
        for names in combinations(ONES, number):
            listed = _ids(service, [(name, ONES[name]) for name in names])
            expected = sorted(device for device, has in fleet.items() if has >= set(names))
            assert [each for each in listed if each in fleet] == expected, names


@pytest.mark.both_databases
@pytest.mark.rule("rest-34", "rest-35")
def test_ids_choose_among_what_the_other_filters_leave(
    service: RunningService, fleet: dict[str, frozenset[str]]
) -> None:
    chosen = sorted(fleet)[3:9]
    ids = [("Ids", each) for each in reversed(chosen)]
    assert _ids(service, ids) == chosen
    assert _ids(service, [*ids, *ids, ("Ids", "bmac-0123456789ab")]) == chosen
    for name, value in ONES.items():
        expected = [each for each in chosen if name in fleet[each]]
        assert _ids(service, [(name, value), *ids]) == expected, name


@pytest.mark.both_databases
@pytest.mark.rule("rest-34")
def test_thousands_of_ids_fit_into_a_query(service: RunningService) -> None:
    device = service.new_device()
    ids = [("Ids", f"bmac-{number:012x}") for number in range(2500)]
    assert _ids(service, [*ids, ("Ids", device)]) == [device]


@pytest.mark.rule("rest-3", "rest-34")
def test_names_of_filters_are_read_in_any_case(
    service: RunningService, fleet: dict[str, frozenset[str]]
) -> None:
    (best,) = [device for device, has in fleet.items() if len(has) == len(ONES)]
    for spell in (str.lower, str.upper, str.swapcase, str.title):
        query = [(spell(name), value) for name, value in ONES.items()] + [(spell("Ids"), best)]
        assert _ids(service, query) == [best]


@pytest.mark.rule("rest-34", "rest-76")
@each_row(
    ("name", "value", "is_met"),
    [
        ("Connected", "TRUE", True),
        ("Connected", "True", True),
        ("Connected", "false", False),
        ("ModelNumber", "000f", True),
        ("FirmwareVersion", "02.04.01", True),
        ("FirmwareVersion", "2.4.1-beta.1", False),
        ("FirmwareVersion", "2.4", False),
        ("HardwareVersion", "1.7.0", True),
        ("HardwareVersion", "1.70", False),
        ("FriendlyName", "UP NORTH", True),
        ("Gateway", FIRST.upper(), True),
        ("Gateway", f"bmac-{FIRST}", True),
        ("Gateway", f"BMAC-{FIRST.upper()}", True),
        ("Gateway", SECOND, False),
        ("Gateway", "ffffffffffff", False),
        ("Label", " red ", True),
        ("Label", "Red", False),
        ("Label", "re", False),
        ("Label", "red,red", False),
        ("Label", "nobody made this", False),
    ],
)
def test_values_have_several_spellings(
    service: RunningService, name: str, value: str, *, is_met: bool
) -> None:
    device = _make(service, frozenset(ONES))
    assert _ids(service, [("Ids", device), (name, value)]) == [device] * is_met
    assert (device in _ids(service, [(name, value)])) is is_met


@pytest.mark.both_databases
@pytest.mark.rule("rest-34", "rest-49")
def test_a_version_finds_its_betas_and_a_beta_only_itself(service: RunningService) -> None:
    gateway = service.new_mac()
    devices = [service.new_device(gateway=gateway, firmware=Version(3, 1, 0, beta)) for beta in (0, 1, 12)]
    for text, found in [
        ("3.1.0", devices),
        ("3.1", devices),
        ("3.1.0-beta.1", devices[1:2]),
        ("3.1.0-beta.2", []),
    ]:
        assert _ids(service, [("Gateway", gateway), ("FirmwareVersion", text)]) == found, text


@pytest.mark.both_databases
@pytest.mark.rule("rest-34", "rest-35", "rest-67")
def test_of_several_labels_a_device_must_have_all(service: RunningService) -> None:
    accented = service.new_name("Gebäude 3/É")
    label, third = service.new_name("ß%2F&="), service.new_name("third")
    one, both = service.new_device(), service.new_device()
    service.operator.post("/api/v1/labels", json={"label": accented, "deviceIds": [one, both]})
    service.operator.post("/api/v1/labels", json={"label": label, "deviceIds": [both]})
    service.operator.post("/api/v1/labels", json={"label": third})
    spelt = unicodedata.normalize("NFD", accented)
    assert _ids(service, [("Label", accented)]) == [one, both]
    assert _ids(service, [("Label", spelt), ("label", accented), ("LABEL", label)]) == [both]
    assert _ids(service, [("Label", accented), ("Label", third)]) == []
    assert _ids(service, [("Label", accented), ("Label", "nobody made this")]) == []


@pytest.mark.both_databases
@pytest.mark.rule("rest-34")
def test_more_labels_than_anybody_needs_still_get_an_answer(service: RunningService) -> None:
    device = service.new_device()
    texts = [f"many {number}" for number in range(1100)]
    service.database.write_now(registry.attach_labels, [(text, Mac(device[5:])) for text in texts], at=1)
    answer = _ask(service, [("Label", text) for text in texts])
    assert answer.status_code in {200, 400}, answer.text
    if answer.status_code == 200:
        assert [item["id"] for item in answer.json()["items"]] == [device]


@pytest.mark.rule("rest-16")
@each_row("query", ["Label=unheard+of", "Gateway=0123456789ab", "Ids=bmac-0123456789ab"])
def test_what_nothing_meets_is_an_empty_page(service: RunningService, query: str) -> None:
    answer = service.viewer.get(f"/api/v1/devices?{query}")
    assert (answer.status_code, answer.json()) == (200, {"items": [], "nextToken": None})


@pytest.mark.rule("rest-34", "rest-37")
@each_row(("name", "value"), [(name, each) for name, values in MALFORMED.items() for each in values])
def test_a_malformed_value_is_refused_by_the_name_of_its_filter(
    service: RunningService, name: str, value: str
) -> None:
    answer = _ask(service, [(name.lower(), value)])
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["code"] == "invalid-request"
    assert [each["field"] for each in answer.json()["errors"]] == [name]


@pytest.mark.rule("rest-34")
@pytest.mark.parametrize(
    "names",
    [
        [
            "Label",
            "Label",
            "ModelNumber",
            "FirmwareVersion",
            "HardwareVersion",
            "FriendlyName",
            "Gateway",
            "Ids",
            "Ids",
        ],
        ["Connected", "ModelNumber"],
    ],
)
def test_all_mistakes_are_told_together(service: RunningService, names: list[str]) -> None:
    answer = _ask(service, [(name, ".") for name in names if name != "FriendlyName"] + _blank(names))
    assert answer.status_code == 400
    assert sorted(each["field"] for each in answer.json()["errors"]) == sorted(names)


def _blank(names: list[str]) -> list[tuple[str, str]]:
    """Any text but none may be part of a name."""
    return [(name, "") for name in names if name == "FriendlyName"]


@pytest.mark.rule("rest-4")
@each_row("name", ["Labels", "Conected", "Id", "Model", "Filter", "", "friendly_name", "_", "Ids[]"])
def test_a_misspelt_filter_does_not_select_the_whole_fleet(service: RunningService, name: str) -> None:
    answer = _ask(service, [(name, "x")])
    assert answer.status_code == 400
    assert [each["field"] for each in answer.json()["errors"]] == [name]


@pytest.mark.rule("rest-34")
@each_row("name", [*sorted(set(ONES) - {"Label"}), "Sort", "MaxResults", "Include", "NextToken"])
def test_of_what_is_not_repeatable_a_second_value_is_refused(service: RunningService, name: str) -> None:
    more: dict[str, Any] = {"Sort": "id", "MaxResults": "5", "Include": "live", "NextToken": "x"}
    value = str((ONES | more)[name])
    answer = _ask(service, [(name, value), (name.lower(), value)])
    assert answer.status_code == 400
    assert [each["field"] for each in answer.json()["errors"]] == [name]
