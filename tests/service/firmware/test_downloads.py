"""Images for people, and for gateways with a signed address."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import pytest
from sqlalchemy import delete, insert

from meshfleet import rest
from meshfleet.db.tables import image_chunk
from meshfleet.protocol.ids import Mac
from meshfleet.rest import FIRMWARE_PATH, IMAGES_PATH, Firmware
from meshfleet.service.firmware.signed_urls import ImageUrlSigner
from tests.firmware_images import bare_image
from tests.row_tables import each_row
from tests.service.firmware.uploads import digest, new_content, released, uploaded

if TYPE_CHECKING:
    from typing import Any

    import httpx

    from tests.service.http.running_service import RunningService

GATEWAY = Mac("d0cf5e000001")
LARGE = bare_image(bytes(range(256)) * 4096)[: 1 << 20]
"""A megabyte, so four pieces."""


@pytest.fixture(scope="module", autouse=True)
def _claimed(service: RunningService) -> None:
    assert service.admin.post("/api/v1/gateways", json={"mac": GATEWAY}).status_code == 201


def _address(service: RunningService, record: dict[str, Any], addresses: ImageUrlSigner | None = None) -> str:
    known = rest.decode_body(Firmware, json.dumps(record).encode())
    return (addresses or service.addresses).build_url(known, GATEWAY)


def _fetch(service: RunningService, address: str, **headers: str) -> httpx.Response:
    return service.anonymous.get(
        address, headers={name.replace("_", "-"): each for name, each in headers.items()}
    )


@pytest.mark.rule("rest-110")
@each_row("content", [b"x", b"y" * 262_144, b"z" * 262_145, LARGE + b"tail"])
def test_people_get_an_image_as_it_was(service: RunningService, content: bytes) -> None:
    record = uploaded(service, content, name='ä b"%.raucb')
    answer = service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image")
    assert (answer.status_code, answer.content) == (200, content)
    assert answer.headers["Content-Length"] == str(len(content))
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["ETag"] == f'"{digest(content)}"'
    assert answer.headers["Content-Disposition"] == (
        "attachment; filename=\"_ b__.raucb\"; filename*=UTF-8''%C3%A4%20b%22%25.raucb"
    )


@pytest.mark.parametrize("path", ["{FIRMWARE}/{id}/image", "address"])
def test_a_head_tells_how_large_an_image_is(service: RunningService, path: str) -> None:
    record = released(service, LARGE)
    where = _address(service, record) if path == "address" else f"{FIRMWARE_PATH}/{record['id']}/image"
    answer = service.viewer.head(where)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["Content-Length"] == str(len(LARGE))


@pytest.mark.rule("firmware-20")
def test_a_gateway_needs_nothing_but_its_address(service: RunningService) -> None:
    content = new_content()
    record = released(service, content, name="strange /name?&#%.bin")
    address = _address(service, record)
    assert address.startswith(f"{service.url}{IMAGES_PATH}/")
    answer = _fetch(service, address)
    assert (answer.status_code, answer.content) == (200, content)


@pytest.mark.rule("firmware-20", "rest-203")
def test_an_address_holds_for_a_quarter_of_an_hour(service: RunningService) -> None:
    record = released(service)
    address = _address(service, record)
    service.clock.move(seconds=15 * 60 - 60)
    assert _fetch(service, address).status_code == 200
    service.clock.move(seconds=60)
    assert _fetch(service, address).status_code == 404


def test_an_address_ends_with_its_gateway(service: RunningService) -> None:
    other = service.new_mac()
    assert service.admin.post("/api/v1/gateways", json={"mac": other}).status_code == 201
    known = rest.decode_body(Firmware, json.dumps(released(service, new_content())).encode())
    address = service.addresses.build_url(known, other)
    assert _fetch(service, address).status_code == 200
    assert service.admin.delete(f"/api/v1/gateways/{other}").status_code == 204
    assert _fetch(service, address).status_code == 404


@pytest.mark.rule("firmware-20")
def test_an_address_cannot_be_forged(service: RunningService) -> None:
    record = released(service)
    address = _address(service, record)
    token = urlsplit(address).path.split("/")[-2]
    data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        forged = base64.urlsafe_b64encode(changed).rstrip(b"=").decode()
        assert _fetch(service, address.replace(token, forged)).status_code == 404
    for other in (token[:-1], token + "A", token + "=", "-", "%00", "a%2Fb", "%FF", token * 100):
        assert _fetch(service, address.replace(token, other)).status_code == 404
    foreign = ImageUrlSigner(b"another secret", service.url, service.clock)
    assert _fetch(service, _address(service, record, foreign)).status_code == 404
    assert _fetch(service, address).status_code == 200


def test_only_what_is_released_is_given_to_gateways(service: RunningService) -> None:
    draft, record = uploaded(service), released(service)
    assert _fetch(service, _address(service, draft)).status_code == 404
    address = _address(service, record)
    assert _fetch(service, address).status_code == 200
    service.admin.post(f"{FIRMWARE_PATH}/{record['id']}/withdraw")
    assert _fetch(service, address).status_code == 404
    assert service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image").status_code == 200
    service.admin.delete(f"{FIRMWARE_PATH}/{record['id']}")
    assert _fetch(service, address).status_code == 404


@each_row(
    ("wanted", "start", "stop"),
    [
        ("bytes=0-", 0, None),
        ("bytes=1-", 1, None),
        ("bytes=300000-", 300_000, None),
        ("Bytes=5-9", 5, 10),
        ("bytes=262143-262145", 262_143, 262_146),
        ("bytes=0-0", 0, 1),
        ("bytes=10-99999999999", 10, None),
        ("bytes=1048575-", 1_048_575, None),
    ],
)
@pytest.mark.rule("rest-203")
def test_who_was_interrupted_goes_on_where_it_was(
    service: RunningService, wanted: str, start: int, stop: int | None
) -> None:
    record = released(service, LARGE)
    for answer in (
        _fetch(service, _address(service, record), Range=wanted),
        service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image", headers={"Range": wanted}),
    ):
        assert (answer.status_code, answer.content) == (206, LARGE[start:stop])
        last = (stop or len(LARGE)) - 1
        assert answer.headers["Content-Range"] == f"bytes {start}-{last}/{len(LARGE)}"


@pytest.mark.parametrize("wanted", ["bytes=1048576-", "bytes=99999999-100000000"])
def test_there_is_nothing_behind_the_end(service: RunningService, wanted: str) -> None:
    answer = _fetch(service, _address(service, released(service, LARGE)), Range=wanted)
    assert (answer.status_code, answer.json()["code"]) == (416, "range-not-satisfiable")
    assert answer.headers["Content-Range"] == f"bytes */{len(LARGE)}"


@each_row(
    "wanted",
    ["bytes=5-1", "bytes=-5", "bytes=0-1,3-4", "lines=0-1", "bytes", "bytes=x-", "bytes=" + "9" * 99 + "-"],
)
def test_a_range_that_is_not_understood_is_passed_over(service: RunningService, wanted: str) -> None:
    answer = _fetch(service, _address(service, released(service, LARGE)), Range=wanted)
    assert (answer.status_code, answer.content) == (200, LARGE)


def test_a_part_of_another_image_is_not_given(service: RunningService) -> None:
    record = released(service, LARGE)
    address = _address(service, record)
    same = _fetch(service, address, Range="bytes=5-", If_Range=f'"{record["sha256"]}"')
    other = _fetch(service, address, Range="bytes=5-", If_Range='"another"')
    assert (same.status_code, other.status_code) == (206, 200)


def test_bytes_that_were_sent_are_counted(service: RunningService) -> None:
    record = uploaded(service, LARGE)
    before = _sent(service)
    service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image")
    assert _sent(service) == before + len(LARGE)


def _sent(service: RunningService) -> float:
    lines = service.viewer.get("/metrics").text.splitlines()
    (line,) = (line for line in lines if line.startswith("meshfleet_image_bytes_total "))
    return float(line.split()[1])


@each_row("damage", ["gone", "shorter", "longer"])
def test_an_image_that_was_damaged_is_an_error_and_never_half_of_it(
    service: RunningService, damage: str
) -> None:
    content = new_content() * 500
    record = released(service, content)
    _damage(service, digest(content), damage)
    for answer in (
        service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image"),
        _fetch(service, _address(service, record)),
        _fetch(service, _address(service, record), Range="bytes=5-9"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (500, "image-damaged")


def _damage(service: RunningService, sha256: str, damage: str) -> None:
    if service.database.is_sqlite:
        place = service.data / "images" / sha256
        content = place.read_bytes()
        place.write_bytes(content[:-1] if damage == "shorter" else content + b"x")
        if damage == "gone":
            place.unlink()
        return
    mine = image_chunk.c.sha256 == bytes.fromhex(sha256)
    chosen = mine if damage == "gone" else mine & (image_chunk.c.place == 0)
    row = {"sha256": bytes.fromhex(sha256), "place": 99, "content": b"x"}
    change = insert(image_chunk).values(row) if damage == "longer" else delete(image_chunk).where(chosen)
    service.database.write_now(lambda connection: connection.execute(change).close())


def test_the_name_in_an_address_may_be_any(service: RunningService) -> None:
    record = released(service)
    address = _address(service, record)
    assert address.endswith(f"/{quote(record['fileName'])}")
    assert _fetch(service, f"{address}.other").status_code == 200
