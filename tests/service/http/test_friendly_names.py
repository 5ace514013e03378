"""Friendly names: setting them, and filtering by them."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Mac, ModelNumber
from meshfleet.service.devices.model import DeviceObservation
from tests.row_tables import each_row

if TYPE_CHECKING:
    import httpx

    from tests.service.http.running_service import RunningService

DOOR = "\N{DOOR}"
MECHANIC = "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{WRENCH}"
NAMES = [
    "x",
    "Boiler room 3, north wing",
    "会議室 \N{MIDDLE DOT} デバイス",
    "\u0645\u0633\u062a\u0648\u062f\u0639 7",
    "cafe\N{COMBINING ACUTE ACCENT}",
    f"{DOOR} {MECHANIC}",
    "a/b\\c 100% \"q\" 'q' <b> & {x} $1 ; -- `",
    "'; DROP TABLE device; --",
    "null",
    "\N{ZERO WIDTH SPACE}",
    "\uffff\ufdd0",
    "n" * 128,
    DOOR * 128,
]


def _rename(service: RunningService, device: str, name: Any) -> httpx.Response:
    return service.operator.put(f"/api/v1/devices/{device}/friendly-name", json={"name": name})


def _create_named_device(service: RunningService, name: str) -> str:
    device = service.new_device()
    response = _rename(service, device, name)
    assert response.status_code == 200, response.text
    return device


def _list_renames(service: RunningService, device: str) -> list[tuple[str, str]]:
    query = {"Target": device, "Action": "device.rename"}
    rows = service.admin.get("/api/v1/audit", params=query).json()["items"]
    return [(row["detail"]["before"], row["detail"]["after"]) for row in rows]


@pytest.mark.rule("rest-6", "rest-7", "rest-43", "rest-44")
@each_row("name", NAMES)
def test_a_rename_returns_the_device_with_its_new_name(service: RunningService, name: str) -> None:
    device = service.new_device()
    response = _rename(service, device, name)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert response.json()["friendlyName"] == name
    assert response.json() == service.viewer.get("/api/v1/devices", params={"Ids": device}).json()["items"][0]
    assert list(response.json())[:2] == ["id", "friendlyName"]
    assert len(response.json()) == 10


@pytest.mark.rule("rest-44")
@each_row("padding", [" ", "\t", "\r\n", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}"])
def test_a_name_is_trimmed(service: RunningService, padding: str) -> None:
    name = "n" * 128
    assert _rename(service, service.new_device(), f"{padding}{name}{padding}").json()["friendlyName"] == name


@pytest.mark.rule("rest-43", "rest-44")
@each_row(
    "name",
    [
        "",
        " ",
        "\t\n",
        "n" * 129,
        DOOR * 129,
        "a\0b",
        "a\nb",
        "a\x7fb",
        "a\x85b",
        "a\x1bb",
        None,
        5,
        ["a"],
        {},
    ],
)
def test_an_invalid_name_is_refused(service: RunningService, name: Any) -> None:
    device = service.new_device()
    response = _rename(service, device, name)
    assert (response.status_code, response.headers["content-type"]) == (400, "application/problem+json")
    assert [each["field"] for each in response.json()["errors"]] == ["name"]
    assert service.viewer.get(f"/api/v1/devices/{device}").json()["friendlyName"] == f"Device {device[-4:]}"
    assert _list_renames(service, device) == []


@pytest.mark.rule("rest-43")
@each_row(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"null", "body"),
        (b'"name"', "body"),
        (b"{}", "name"),
        (b'{"Name": "a"}', "Name"),
        (b'{"name": "a", "force": true}', "force"),
        (b'{"name": "a\xff"}', "body"),
        (b'{"name": "\\ud83d"}', "body"),
        (b'{"name": "\\udeaax"}', "body"),
        (b'{"name": "\xed\xa0\x80"}', "body"),
    ],
)
def test_an_invalid_body_is_refused(service: RunningService, body: bytes, field: str) -> None:
    device = service.new_device()
    path, headers = f"/api/v1/devices/{device}/friendly-name", {"content-type": "application/json"}
    response = service.operator.put(path, content=body, headers=headers)
    assert response.status_code == 400, response.text
    assert [each["field"] for each in response.json()["errors"]] == [field]
    assert _list_renames(service, device) == []


@pytest.mark.rule("rest-43")
def test_every_rename_is_one_audit_row_and_an_unchanged_name_is_none(
    service: RunningService,
) -> None:
    device = service.new_device()
    for name in ("one", "one", "two", " two ", "one"):
        assert _rename(service, device, name).status_code == 200
    assert _list_renames(service, device) == [
        ("two", "one"),
        ("one", "two"),
        (f"Device {device[-4:]}", "one"),
    ]


@pytest.mark.rule("rest-45")
def test_a_device_is_named_after_its_product_until_a_user_names_it(service: RunningService) -> None:
    device = service.new_device()
    mac = Mac(device[5:])

    def observe(**facts: Any) -> str:
        service.observe(DeviceObservation(device=mac, at=service.clock(), **facts))
        return str(service.viewer.get(f"/api/v1/devices/{device}").json()["friendlyName"])

    assert observe(model=ModelNumber("0018")) == f"MT MotionSensor 15x {mac[-4:]}"
    assert observe(model=ModelNumber("0011"), variant=4) == f"KKM B1 {mac[-4:]}"
    found = service.viewer.get("/api/v1/devices", params={"FriendlyName": f"kkm b1 {mac[-4:]}"}).json()
    assert [item["id"] for item in found["items"]] == [device]
    _rename(service, device, "Mine")
    assert observe(model=ModelNumber("0018")) == "Mine"


ACUTE = "\N{COMBINING ACUTE ACCENT}"
SIGMAS = "\u039f\u0394\u03a5\u03a3\u03a3\u0395\u03a5\u03a3"
MATCHES = [
    ("abcdef", "a"),
    ("abcdef", "AB"),
    ("abcdef", "bcd"),
    ("abcdef", "DEF"),
    ("abcdef", "abcdef"),
    ("Room 12", " 12"),
    ("Room 12", "m 1"),
    ("STRASSE 5", "straße"),
    ("Hauptstraße", "STRASSE"),
    ("ßtart", "SS"),
    ("SStart", "ß"),
    (SIGMAS, SIGMAS.lower()),
    (SIGMAS.lower(), SIGMAS[4:]),
    ("Café", f"CAFE{ACUTE}"),
    (f"cafe{ACUTE} au lait", "FÉ A"),
    (f"e{ACUTE}tage", "É"),
    ("kap\u0131 7", "AP\u0131"),
    ("\u0130zmir depo", "\u0130ZM"),
    ("ISPARTA", "isparta"),
    ("ﬁlter", "FIL"),
    ("会議室三階", "議室三"),
    ("会議室三階", "会"),
    (f"{DOOR} north", DOOR),
    (f"north {DOOR}{DOOR}{DOOR}", DOOR * 3),
    (f"bench {MECHANIC}", MECHANIC),
    ('He said "stop"', '"stop"'),
    ("O'Brien's", "'BRIEN'"),
    ("100% wool", "00%"),
    ("%", "%"),
    ("_a", "_"),
    ("a_b_c", "_b_"),
    ("C:\\temp\\x", ":\\t"),
    ("back\\\\", "ck\\\\"),
    ('" OR NEAR( *', '" or near( *'),
    ("x OR y", "x OR"),
    ("prefix*rest", "fix*re"),
    ("a^b:c-d+e", "^B:C-D+"),
    ("sand NOT wet", "nd not we"),
    ("[a-z]{3} .*", "[a-z]{3} .*"),
    ("a&b=c;d#e?f", "&b=c;d#e?"),
]
MISMATCHES = [
    ("abcdef", "b"),
    ("abcdef", "bc"),
    ("abcdef", "efg"),
    ("abcdef", "abcdefg"),
    ("Café", "cafe"),
    ("north " + DOOR, DOOR),
    ("axbxc", "_b_"),
    ("100 wool", "00%"),
    ("alpha beta", "alp*"),
    ("alpha beta", "alpha AND beta"),
    ("alpha beta", "beta OR alpha"),
    ("alpha beta", "alpha NEAR beta"),
    ("alpha beta", "name_key:alpha"),
    ("alpha beta", "beta alpha"),
    ("alpha beta", '"alpha"'),
    ("alpha beta", "' OR '1'='1"),
    ("alpha beta", "alpha\\"),
    ("alpha beta", "%%%"),
    ("alpha beta", "___"),
    ("alpha beta", ".*a"),
]


def _is_found(service: RunningService, device: str, text: str, **more: str) -> bool:
    query = {"FriendlyName": text, "MaxResults": "1000", **more}
    response = service.viewer.get("/api/v1/devices", params=query)
    assert response.status_code == 200, response.text
    return device in [item["id"] for item in response.json()["items"]]


@pytest.mark.rule("rest-36")
@each_row(("name", "text"), MATCHES)
def test_a_device_is_found_by_its_name(service: RunningService, name: str, text: str) -> None:
    device = _create_named_device(service, name)
    assert _is_found(service, device, text)
    assert _is_found(service, device, unicodedata.normalize("NFD", text), Sort="friendlyName", Ids=device)


@pytest.mark.rule("rest-36")
@each_row(("name", "text"), MISMATCHES)
def test_a_device_of_another_name_is_not_found(service: RunningService, name: str, text: str) -> None:
    device = _create_named_device(service, name)
    assert not _is_found(service, device, text)
    assert not _is_found(service, device, text, Sort="-friendlyName", Ids=device)


@pytest.mark.rule("rest-36")
def test_a_renamed_device_is_found_by_its_new_name_only(service: RunningService) -> None:
    device = _create_named_device(service, "former name")
    _rename(service, device, "present title")
    assert _is_found(service, device, "PRESENT")
    assert not _is_found(service, device, "former")
    assert not _is_found(service, device, "fo")


@pytest.mark.rule("rest-36")
@each_row("value", ["", "a%00b", "%ED%A0%80abc", "%FF%FE", "a%C3"])
def test_a_text_that_cannot_be_part_of_a_name_is_refused(service: RunningService, value: str) -> None:
    response = service.viewer.get(f"/api/v1/devices?FriendlyName={value}")
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] in (["FriendlyName"], ["query"])
