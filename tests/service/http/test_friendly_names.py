"""Friendly names: giving them, and finding devices by them."""

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


def _named(service: RunningService, name: str) -> str:
    device = service.new_device()
    answer = _rename(service, device, name)
    assert answer.status_code == 200, answer.text
    return device


def _renames(service: RunningService, device: str) -> list[tuple[str, str]]:
    query = {"Target": device, "Action": "device.rename"}
    rows = service.admin.get("/api/v1/audit", params=query).json()["items"]
    return [(row["detail"]["before"], row["detail"]["after"]) for row in rows]


@pytest.mark.rule("rest-6", "rest-7", "rest-43", "rest-44")
@each_row("name", NAMES)
def test_a_device_takes_the_name_it_is_given_and_is_the_answer(service: RunningService, name: str) -> None:
    device = service.new_device()
    answer = _rename(service, device, name)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json()["friendlyName"] == name
    assert answer.json() == service.viewer.get("/api/v1/devices", params={"Ids": device}).json()["items"][0]
    assert list(answer.json())[:2] == ["id", "friendlyName"]
    assert len(answer.json()) == 10


@pytest.mark.rule("rest-44")
@each_row("around", [" ", "\t", "\r\n", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}"])
def test_a_name_is_trimmed(service: RunningService, around: str) -> None:
    name = "n" * 128
    assert _rename(service, service.new_device(), f"{around}{name}{around}").json()["friendlyName"] == name


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
def test_a_name_that_cannot_be_is_refused(service: RunningService, name: Any) -> None:
    device = service.new_device()
    answer = _rename(service, device, name)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert [each["field"] for each in answer.json()["errors"]] == ["name"]
    assert service.viewer.get(f"/api/v1/devices/{device}").json()["friendlyName"] == f"Device {device[-4:]}"
    assert _renames(service, device) == []


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
def test_a_body_that_is_no_name_is_refused(service: RunningService, body: bytes, field: str) -> None:
    device = service.new_device()
    path, headers = f"/api/v1/devices/{device}/friendly-name", {"content-type": "application/json"}
    answer = service.operator.put(path, content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert [each["field"] for each in answer.json()["errors"]] == [field]
    assert _renames(service, device) == []


@pytest.mark.rule("rest-43")
def test_every_rename_is_one_row_of_the_audit_log_and_the_same_name_again_is_none(
    service: RunningService,
) -> None:
    device = service.new_device()
    for name in ("one", "one", "two", " two ", "one"):
        assert _rename(service, device, name).status_code == 200
    assert _renames(service, device) == [("two", "one"), ("one", "two"), (f"Device {device[-4:]}", "one")]


@pytest.mark.rule("rest-45")
def test_until_somebody_names_it_a_device_is_called_after_its_product(service: RunningService) -> None:
    device = service.new_device()
    mac = Mac(device[5:])

    def learn(**facts: Any) -> str:
        service.observe(DeviceObservation(device=mac, at=service.clock(), **facts))
        return str(service.viewer.get(f"/api/v1/devices/{device}").json()["friendlyName"])

    assert learn(model=ModelNumber("0018")) == f"MT MotionSensor 15x {mac[-4:]}"
    assert learn(model=ModelNumber("0011"), variant=4) == f"KKM B1 {mac[-4:]}"
    found = service.viewer.get("/api/v1/devices", params={"FriendlyName": f"kkm b1 {mac[-4:]}"}).json()
    assert [item["id"] for item in found["items"]] == [device]
    _rename(service, device, "Mine")
    assert learn(model=ModelNumber("0018")) == "Mine"


ACUTE = "\N{COMBINING ACUTE ACCENT}"
SIGMAS = "\u039f\u0394\u03a5\u03a3\u03a3\u0395\u03a5\u03a3"
FOUND = [
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
PASSED_OVER = [
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


def _finds(service: RunningService, device: str, text: str, **more: str) -> bool:
    query = {"FriendlyName": text, "MaxResults": "1000", **more}
    answer = service.viewer.get("/api/v1/devices", params=query)
    assert answer.status_code == 200, answer.text
    return device in [item["id"] for item in answer.json()["items"]]


@pytest.mark.rule("rest-36")
@each_row(("name", "text"), FOUND)
def test_a_device_is_found_by_its_name(service: RunningService, name: str, text: str) -> None:
    device = _named(service, name)
    assert _finds(service, device, text)
    assert _finds(service, device, unicodedata.normalize("NFD", text), Sort="friendlyName", Ids=device)


@pytest.mark.rule("rest-36")
@each_row(("name", "text"), PASSED_OVER)
def test_a_device_of_another_name_is_not_found(service: RunningService, name: str, text: str) -> None:
    device = _named(service, name)
    assert not _finds(service, device, text)
    assert not _finds(service, device, text, Sort="-friendlyName", Ids=device)


@pytest.mark.rule("rest-36")
def test_a_renamed_device_is_found_by_its_new_name_only(service: RunningService) -> None:
    device = _named(service, "former name")
    _rename(service, device, "present title")
    assert _finds(service, device, "PRESENT")
    assert not _finds(service, device, "former")
    assert not _finds(service, device, "fo")


@pytest.mark.rule("rest-36")
@each_row("value", ["", "a%00b", "%ED%A0%80abc", "%FF%FE", "a%C3"])
def test_what_cannot_be_part_of_a_name_is_refused(service: RunningService, value: str) -> None:
    answer = service.viewer.get(f"/api/v1/devices?FriendlyName={value}")
    assert answer.status_code == 400
    assert [each["field"] for each in answer.json()["errors"]] in (["FriendlyName"], ["query"])
