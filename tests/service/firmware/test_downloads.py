"""Tests of image downloads by users, and by gateways with a signed URL."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import pytest
from sqlalchemy import delete, insert

from meshfleet.db.tables import image_chunk
from meshfleet.protocol.ids import Mac
from meshfleet.rest.bodies import decode_body
from meshfleet.rest.firmware import FIRMWARE_PATH, IMAGES_PATH, Firmware
from meshfleet.service.firmware.signed_urls import ImageUrlSigner
from tests.firmware_images import bare_image
from tests.row_tables import each_row
from tests.service.firmware.uploads import hash_hex, new_content, upload_record, upload_released

if TYPE_CHECKING:
    from typing import Any

    import httpx

    from tests.service.http.running_service import RunningService

GATEWAY = Mac("d0cf5e000001")
LARGE = bare_image(bytes(range(256)) * 4096)[: 1 << 20]
"""One megabyte, which is sent in four pieces."""


@pytest.fixture(scope="module", autouse=True)
def _claim_gateway(service: RunningService) -> None:
    assert service.admin.post("/api/v1/gateways", json={"mac": GATEWAY}).status_code == 201


def _build_url(service: RunningService, record: dict[str, Any], signer: ImageUrlSigner | None = None) -> str:
    firmware = decode_body(Firmware, json.dumps(record).encode())
    return (signer or service.addresses).build_url(firmware, GATEWAY)


def _get(service: RunningService, url: str, **headers: str) -> httpx.Response:
    return service.anonymous.get(
        url, headers={name.replace("_", "-"): each for name, each in headers.items()}
    )


@pytest.mark.rule("rest-110")
@each_row("content", [b"x", b"y" * 262_144, b"z" * 262_145, LARGE + b"tail"])
def test_users_download_the_image_unchanged(service: RunningService, content: bytes) -> None:
    record = upload_record(service, content, name='ä b"%.raucb')
    response = service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image")
    assert (response.status_code, response.content) == (200, content)
    assert response.headers["Content-Length"] == str(len(content))
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert response.headers["ETag"] == f'"{hash_hex(content)}"'
    assert response.headers["Content-Disposition"] == (
        "attachment; filename=\"_ b__.raucb\"; filename*=UTF-8''%C3%A4%20b%22%25.raucb"
    )


@pytest.mark.parametrize("path", ["{FIRMWARE}/{id}/image", "signed URL"])
def test_a_head_request_returns_the_size_of_an_image(service: RunningService, path: str) -> None:
    record = upload_released(service, LARGE)
    target = _build_url(service, record) if path == "signed URL" else f"{FIRMWARE_PATH}/{record['id']}/image"
    response = service.viewer.head(target)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["Content-Length"] == str(len(LARGE))


@pytest.mark.rule("firmware-20")
def test_a_gateway_needs_no_credentials_besides_its_signed_url(service: RunningService) -> None:
    content = new_content()
    record = upload_released(service, content, name="strange /name?&#%.bin")
    url = _build_url(service, record)
    assert url.startswith(f"{service.url}{IMAGES_PATH}/")
    response = _get(service, url)
    assert (response.status_code, response.content) == (200, content)


@pytest.mark.rule("firmware-20", "rest-203")
def test_a_signed_url_is_valid_for_15_minutes(service: RunningService) -> None:
    record = upload_released(service)
    url = _build_url(service, record)
    service.clock.move(seconds=15 * 60 - 60)
    assert _get(service, url).status_code == 200
    service.clock.move(seconds=60)
    assert _get(service, url).status_code == 404


def test_a_signed_url_is_invalid_once_its_gateway_is_removed(service: RunningService) -> None:
    other = service.new_mac()
    assert service.admin.post("/api/v1/gateways", json={"mac": other}).status_code == 201
    firmware = decode_body(Firmware, json.dumps(upload_released(service, new_content())).encode())
    url = service.addresses.build_url(firmware, other)
    assert _get(service, url).status_code == 200
    assert service.admin.delete(f"/api/v1/gateways/{other}").status_code == 204
    assert _get(service, url).status_code == 404


@pytest.mark.rule("firmware-20")
def test_a_signed_url_cannot_be_forged(service: RunningService) -> None:
    record = upload_released(service)
    url = _build_url(service, record)
    token = urlsplit(url).path.split("/")[-2]
    data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for index in range(len(data)):
        changed = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
        forged_token = base64.urlsafe_b64encode(changed).rstrip(b"=").decode()
        assert _get(service, url.replace(token, forged_token)).status_code == 404
    for other in (token[:-1], token + "A", token + "=", "-", "%00", "a%2Fb", "%FF", token * 100):
        assert _get(service, url.replace(token, other)).status_code == 404
    other_signer = ImageUrlSigner(b"another secret", service.url, service.clock)
    assert _get(service, _build_url(service, record, other_signer)).status_code == 404
    assert _get(service, url).status_code == 200


def test_gateways_can_download_only_released_firmware(service: RunningService) -> None:
    draft, record = upload_record(service), upload_released(service)
    assert _get(service, _build_url(service, draft)).status_code == 404
    url = _build_url(service, record)
    assert _get(service, url).status_code == 200
    service.admin.post(f"{FIRMWARE_PATH}/{record['id']}/withdraw")
    assert _get(service, url).status_code == 404
    assert service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image").status_code == 200
    service.admin.delete(f"{FIRMWARE_PATH}/{record['id']}")
    assert _get(service, url).status_code == 404


@each_row(
    ("range_header", "start", "stop"),
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
def test_an_interrupted_download_can_be_resumed_with_a_range(
    service: RunningService, range_header: str, start: int, stop: int | None
) -> None:
    record = upload_released(service, LARGE)
    for response in (
        _get(service, _build_url(service, record), Range=range_header),
        service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image", headers={"Range": range_header}),
    ):
        assert (response.status_code, response.content) == (206, LARGE[start:stop])
        last = (stop or len(LARGE)) - 1
        assert response.headers["Content-Range"] == f"bytes {start}-{last}/{len(LARGE)}"


@pytest.mark.parametrize("range_header", ["bytes=1048576-", "bytes=99999999-100000000"])
def test_a_range_after_the_end_is_not_satisfiable(service: RunningService, range_header: str) -> None:
    response = _get(service, _build_url(service, upload_released(service, LARGE)), Range=range_header)
    assert (response.status_code, response.json()["code"]) == (416, "range-not-satisfiable")
    assert response.headers["Content-Range"] == f"bytes */{len(LARGE)}"


@each_row(
    "range_header",
    ["bytes=5-1", "bytes=-5", "bytes=0-1,3-4", "lines=0-1", "bytes", "bytes=x-", "bytes=" + "9" * 99 + "-"],
)
def test_an_unsupported_range_is_ignored(service: RunningService, range_header: str) -> None:
    response = _get(service, _build_url(service, upload_released(service, LARGE)), Range=range_header)
    assert (response.status_code, response.content) == (200, LARGE)


def test_a_range_of_another_image_returns_the_whole_image(service: RunningService) -> None:
    record = upload_released(service, LARGE)
    url = _build_url(service, record)
    same = _get(service, url, Range="bytes=5-", If_Range=f'"{record["sha256"]}"')
    other = _get(service, url, Range="bytes=5-", If_Range='"another"')
    assert (same.status_code, other.status_code) == (206, 200)


def test_sent_bytes_are_counted(service: RunningService) -> None:
    record = upload_record(service, LARGE)
    before = _read_sent_bytes(service)
    service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image")
    assert _read_sent_bytes(service) == before + len(LARGE)


def _read_sent_bytes(service: RunningService) -> float:
    lines = service.viewer.get("/metrics").text.splitlines()
    (line,) = (line for line in lines if line.startswith("meshfleet_image_bytes_total "))
    return float(line.split()[1])


@each_row("damage", ["gone", "shorter", "longer"])
def test_a_damaged_image_is_an_error_and_never_sent_in_part(service: RunningService, damage: str) -> None:
    content = new_content() * 500
    record = upload_released(service, content)
    _damage(service, hash_hex(content), damage)
    for response in (
        service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image"),
        _get(service, _build_url(service, record)),
        _get(service, _build_url(service, record), Range="bytes=5-9"),
    ):
        assert (response.status_code, response.json()["code"]) == (500, "image-damaged")


def _damage(service: RunningService, sha256: str, damage: str) -> None:
    if service.database.is_sqlite:
        index = service.data / "images" / sha256
        content = index.read_bytes()
        index.write_bytes(content[:-1] if damage == "shorter" else content + b"x")
        if damage == "gone":
            index.unlink()
        return
    is_image = image_chunk.c.sha256 == bytes.fromhex(sha256)
    is_selected = is_image if damage == "gone" else is_image & (image_chunk.c.place == 0)
    row = {"sha256": bytes.fromhex(sha256), "place": 99, "content": b"x"}
    change = insert(image_chunk).values(row) if damage == "longer" else delete(image_chunk).where(is_selected)
    service.database.write_now(lambda connection: connection.execute(change).close())


def test_the_file_name_in_a_signed_url_is_not_checked(service: RunningService) -> None:
    record = upload_released(service)
    url = _build_url(service, record)
    assert url.endswith(f"/{quote(record['fileName'])}")
    assert _get(service, f"{url}.other").status_code == 200
