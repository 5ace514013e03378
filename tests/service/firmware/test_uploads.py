"""Tests of firmware uploads and the checks of their images."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.firmware_image import MAX_PACKAGE_BYTES
from meshfleet.rest.firmware import FIRMWARE_PATH
from tests.eventually import eventually
from tests.row_tables import each_row
from tests.service.firmware.uploads import (
    BUNDLE,
    MODEL,
    faults,
    hash_hex,
    list_partial_images,
    list_stored_images,
    new_content,
    new_version,
    package,
    upload,
    upload_record,
)
from tests.service.http.raw_http import build_bearer_header, build_head, connect_raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.service.http.running_service import RunningService


@pytest.mark.rule("rest-107", "rest-109", "rest-8", "rest-108")
def test_an_upload_creates_a_draft_record(service: RunningService) -> None:
    version = new_version()
    content = package(version)
    response = upload(
        service,
        content,
        "fw.zip",
        version=version,
        hardwareVersions=["1.2.0", "2.0"],
        minVersion="1.0.0-beta.2",
        notes="First line\nand more: ü",
        sha256=hash_hex(content).upper(),
        type="1",
    )
    assert response.status_code == 201, response.text
    record = response.json()
    assert record.pop("id").startswith("fw-")
    assert record.pop("createdAt")
    assert record == {  # exactly these fields
        "modelNumber": MODEL,
        "version": version,
        "type": 1,
        "bare": False,
        "fileName": "fw.zip",
        "size": len(content),
        "sha256": hash_hex(content),
        "hardwareVersions": ["1.2.0", "2.0.0"],
        "minVersion": "1.0.0-beta.2",
        "notes": "First line\nand more: ü",
        "state": "draft",
        "createdBy": "api-key: key of a admin",
        "releasedAt": None,
    }


def test_omitted_fields_have_defaults(service: RunningService) -> None:
    record = upload_record(service, modelNumber="00ab")
    assert (record["modelNumber"], record["hardwareVersions"], record["minVersion"]) == ("00AB", [], None)
    assert (record["notes"], record["type"], record["bare"]) == ("", 1, True)
    bundle = upload_record(service, BUNDLE, name="Gateway.RAUCB")
    assert (bundle["type"], bundle["bare"]) == (2, False)
    for firmware_type in ("1", None):
        record = upload_record(service, name="x.raucb", bare="true", type=firmware_type)
        assert (record["type"], record["bare"]) == (1, True)
    version = new_version()
    record = upload_record(service, package(version), version=version, bare="false", override="false")
    assert (record["type"], record["bare"]) == (1, False)


def test_form_parts_may_be_in_any_order(service: RunningService) -> None:
    content = new_content()
    parts: list[tuple[str, Any]] = [
        ("image", ("a.bin", content)),
        ("version", (None, new_version())),
        ("modelNumber", (None, MODEL)),
        ("bare", (None, "true")),
    ]
    for ordered in (parts, parts[::-1]):
        response = service.admin.post(FIRMWARE_PATH, files=ordered)
        assert response.status_code in {201, 409}, response.text
    assert hash_hex(content) in list_stored_images(service)


@each_row(
    ("file_name", "expected"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\fw\\image.zip", "image.zip"),
        ("  spaced name.bin ", "spaced name.bin"),
        ("ünïcode-固件.bin", "ünïcode-固件.bin"),
        ("x" * 300 + ".zip", "x" * 251 + ".zip"),
        ("a\x1b[31m.bin", "a[31m.bin"),
        ("a\u202eb\u200b\u2028.bin", "ab.bin"),
    ],
)
def test_a_file_name_is_sanitized(service: RunningService, file_name: str, expected: str) -> None:
    version = new_version()
    record = upload_record(
        service, package(version) if file_name.endswith(".zip") else None, name=file_name, version=version
    )
    assert record["fileName"] == expected
    image = service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image")
    assert image.status_code == 200
    assert image.headers["Content-Disposition"].startswith("attachment; filename=")


@each_row(
    ("fields", "field"),
    [
        ({"modelNumber": None}, "modelNumber"),
        ({"modelNumber": "18"}, "modelNumber"),
        ({"modelNumber": ["0018", "0018"]}, "modelNumber"),
        ({"version": None}, "version"),
        ({"version": "three"}, "version"),
        ({"version": ""}, "version"),
        ({"version": "256.0.0"}, "version"),
        ({"hardwareVersions": ["1.0.0", "x"]}, "hardwareVersions[1]"),
        ({"hardwareVersions": "1.0.0,2.0.0"}, "hardwareVersions[0]"),
        ({"hardwareVersions": "1.0.0-beta.1"}, "hardwareVersions[0]"),
        ({"hardwareVersions": ["1.0.0"] * 101}, "hardwareVersions"),
        ({"minVersion": "x"}, "minVersion"),
        ({"version": "1.9.9", "minVersion": "1.10.0"}, "minVersion"),
        ({"version": "1.0.0-beta.3", "minVersion": "1.0.0"}, "minVersion"),
        ({"notes": "x" * 10_001}, "notes"),
        ({"notes": "x" * 100_000}, "notes"),
        ({"notes": "a\0b"}, "notes"),
        ({"notes": "a\x1b[31m"}, "notes"),
        ({"notes": "a\x7f"}, "notes"),
        ({"notes": ["a", "b"]}, "notes"),
        ({"notes": b"\xff"}, "notes"),
        ({"sha256": "abc"}, "sha256"),
        ({"sha256": "0" * 64}, "sha256"),
        ({"type": "3"}, "type"),
        ({"type": ""}, "type"),
        ({"type": "2"}, "bare"),
        ({"bare": "yes"}, "bare"),
        ({"bare": ["true", "true"]}, "bare"),
        ({"override": "1"}, "override"),
        ({"unknown": "x"}, "unknown"),
        ({"ModelNumber": "0018"}, "ModelNumber"),
    ],
)
def test_an_invalid_field_is_reported_by_its_name(
    service: RunningService, fields: dict[str, Any], field: str
) -> None:
    content = new_content()
    assert list(faults(upload(service, content, **fields))) == [field]
    assert hash_hex(content) not in list_stored_images(service)
    assert not list_partial_images(service)


def test_the_minimum_version_may_equal_the_version(service: RunningService) -> None:
    version = new_version()
    assert upload_record(service, version=version, minVersion=version)["minVersion"] == version


@pytest.mark.rule("rest-109")
def test_all_faults_are_reported_at_once(service: RunningService) -> None:
    response = upload(
        service, modelNumber="x", version=None, minVersion="y", type="0", unknown="z", sha256="-"
    )
    assert set(faults(response)) == {"modelNumber", "version", "minVersion", "type", "unknown", "sha256"}


def test_exactly_one_nonempty_image_file_is_required(service: RunningService) -> None:
    fields = {"modelNumber": (None, MODEL), "version": (None, new_version())}
    assert faults(service.admin.post(FIRMWARE_PATH, files=fields)) == {"image": "is missing"}
    assert faults(service.admin.post(FIRMWARE_PATH, files={**fields, "image": (None, b"x")})) == {
        "image": "must have a file name"
    }
    assert faults(service.admin.post(FIRMWARE_PATH, files={**fields, "image": ("..", b"x")})) == {
        "image": "must have a file name"
    }
    assert faults(service.admin.post(FIRMWARE_PATH, files={**fields, "image": ("a.bin", b"")})) == {
        "image": "must not be empty"
    }
    parts: list[tuple[str, Any]] = [*fields.items(), ("image", ("a", b"x")), ("image", ("b", b"y"))]
    assert faults(service.admin.post(FIRMWARE_PATH, files=parts)) == {
        "image": "must not be given more than once"
    }
    assert not list_partial_images(service)


@pytest.mark.rule("firmware-17", "rest-213")
@each_row(
    ("content", "reason"),
    [
        (package("3.4.2")[:-200], "damaged zip"),
        (package("3.4.2")[:100], "zip"),
        (b"PK\x03\x04 and then nonsense", "zip"),
        (b"hello", "is not a Nordic package (a zip file)"),
        (package("3.4.2", "0005"), "is a package for model 0005; the record says 0018"),
        (package("3.4.1"), "is a package of version 3.4.1; the record says 3.4.2"),
        (package("3.4.2-beta.1"), "is a package of version 3.4.2-beta.1; the record says 3.4.2"),
    ],
)
def test_a_package_that_gateways_would_reject_is_rejected(
    service: RunningService, content: bytes, reason: str
) -> None:
    for name in ("fw.zip", "fw"):
        rejected = upload(service, content, name, version="3.4.2", bare=None)
        assert reason in faults(rejected)["image"]
    assert hash_hex(content) not in list_stored_images(service)
    assert not list_partial_images(service)
    assert upload_record(service, content, name="fw.raucb")["type"] == 2


@pytest.mark.rule("rest-220")
def test_a_package_with_another_model_and_version_is_rejected_for_both(service: RunningService) -> None:
    response = upload(service, package("1.2.3", "0005"), "fw.zip", version="3.4.2", override="true")
    assert [each["message"] for each in response.json()["errors"]] == [
        "is a package for model 0005; the record says 0018",
        "is a package of version 1.2.3; the record says 3.4.2",
    ]


# --- Bare images ---


@pytest.mark.rule("rest-213", "firmware-44")
@each_row("name", ["hostname", "hostname.bin", "hostname.zip"])
def test_a_file_that_is_no_package_must_be_marked_as_bare(service: RunningService, name: str) -> None:
    for content in (b"my-host\n", new_content()):
        assert faults(upload(service, content, name, bare=None, override="true")) == {
            "image": "is not a Nordic package (a zip file)",
            "bare": "must be true for a bare image",
        }
        assert hash_hex(content) not in list_stored_images(service)


@pytest.mark.rule("rest-213", "rest-221", "firmware-44")
def test_a_bare_image_that_fails_its_check_needs_an_override_which_the_audit_log_records(
    service: RunningService,
) -> None:
    content = b"my-desk\n"
    response = upload(service, content, "hostname")
    assert (response.status_code, response.json()["code"]) == (400, "image-check-failed")
    messages = faults(response)
    assert "it has 8 bytes" in messages["image"]
    assert messages["override"] == "must be true to accept the image nevertheless"
    assert not list_partial_images(service)
    record = upload_record(service, content, name="hostname", override="true")
    assert (record["bare"], record["size"]) == (True, len(content))
    (row,) = service.admin.get("/api/v1/audit", params={"Target": record["id"]}).json()["items"]
    assert (row["action"], row["detail"]["bare"], row["detail"]["sha256"]) == (
        "firmware.upload",
        True,
        hash_hex(content),
    )
    assert "8 bytes" in row["detail"]["override"]
    valid = upload_record(service, override="true")
    (row,) = service.admin.get("/api/v1/audit", params={"Target": valid["id"]}).json()["items"]
    assert "override" not in row["detail"]


@pytest.mark.rule("rest-213")
def test_a_package_is_rejected_as_a_bare_image_even_with_override(service: RunningService) -> None:
    version = new_version()
    response = upload(service, package(version), "fw.bin", version=version, bare="true", override="true")
    assert faults(response) == {"bare": "must not be true: the image is a zip file, such as a Nordic package"}


@pytest.mark.rule("firmware-17")
@pytest.mark.parametrize(
    "content",
    [bytes(MAX_PACKAGE_BYTES + 1), package("3.4.2").ljust(MAX_PACKAGE_BYTES + 1)],
    ids=["bare", "zip"],
)
def test_a_file_larger_than_any_package_is_rejected(service: RunningService, content: bytes) -> None:
    reason = faults(upload(service, content, "fw.zip"))["image"]
    assert reason.startswith(
        f"has {MAX_PACKAGE_BYTES + 1} bytes; a Nordic package may have at most {MAX_PACKAGE_BYTES}"
    )
    assert hash_hex(content) not in list_stored_images(service)
    assert not list_partial_images(service)
    assert upload_record(service, content, name="fw.raucb")["size"] == MAX_PACKAGE_BYTES + 1


@pytest.mark.rule("rest-113")
def test_a_second_upload_of_the_same_model_and_version_is_a_conflict(service: RunningService) -> None:
    first, second, version = new_content(), new_content(), new_version()
    record = upload_record(service, first, version=version)
    response = upload(service, second, version=version)
    assert (response.status_code, response.json()["code"]) == (409, "already-exists")
    assert hash_hex(second) not in list_stored_images(service)
    assert not list_partial_images(service)
    assert upload_record(service, second, version=f"{version}-beta.1")["id"] != record["id"]
    assert upload_record(service, second, version=version, modelNumber="0019")["id"] != record["id"]


@pytest.mark.rule("rest-113", "rest-114")
def test_of_concurrent_uploads_of_one_version_only_one_is_stored(service: RunningService) -> None:
    version, contents = new_version(), [new_content() for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        responses = list(threads.map(lambda content: upload(service, content, version=version), contents))
    assert sorted(each.status_code for each in responses) == [201] + [409] * 5
    (created,) = (each.json() for each in responses if each.status_code == 201)
    assert list_stored_images(service) & {hash_hex(each) for each in contents} == {created["sha256"]}
    assert not list_partial_images(service)


@each_row("content_type", ["application/json", "multipart/mixed; boundary=x", "text/plain"])
def test_other_content_types_are_rejected(service: RunningService, content_type: str) -> None:
    response = service.admin.post(FIRMWARE_PATH, content=b"{}", headers={"Content-Type": content_type})
    assert (response.status_code, response.json()["code"]) == (415, "unsupported-media-type")


_COMPLETE_FORM = (
    b'--x\r\nContent-Disposition: form-data; name="modelNumber"\r\n\r\n0018\r\n'
    b'--x\r\nContent-Disposition: form-data; name="bare"\r\n\r\ntrue\r\n'
    b'--x\r\nContent-Disposition: form-data; name="version"\r\n\r\n%s\r\n'
    b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.bin"\r\n\r\n%s\r\n--x--\r\n'
)


def _send(
    service: RunningService, body: bytes, content_type: str = "multipart/form-data; boundary=x"
) -> httpx.Response:
    return service.admin.post(FIRMWARE_PATH, content=body, headers={"Content-Type": content_type})


@each_row("missing_bytes", [1, 5, 9, 40, 300])
def test_a_truncated_form_is_rejected(service: RunningService, missing_bytes: int) -> None:
    content = new_content()
    form = _COMPLETE_FORM % (new_version().encode(), content)
    assert faults(_send(service, form[:-missing_bytes] if missing_bytes > 2 else form[:-4]))
    assert hash_hex(content) not in list_stored_images(service)
    assert not list_partial_images(service)
    assert _send(service, form).status_code == 201


@each_row(
    "body",
    [
        b"",
        b"--x--\r\n",
        b"--x\r\n\r\n\r\n--x--",
        b"--y\r\n",
        b"x" * 100_000,
        b"--x\r\n" + b"H: v\r\n" * 1000,
        b'--x\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n\r\n--x--',
        b'--x\r\nContent-Disposition: form-data; name="notes"\r\n\r\n\r\n' * 500 + b"--x--",
    ],
)
def test_a_malformed_form_is_rejected(service: RunningService, body: bytes) -> None:
    assert faults(_send(service, body))
    assert not list_partial_images(service)


def test_a_form_must_have_a_boundary(service: RunningService) -> None:
    assert list(faults(_send(service, b"", "multipart/form-data"))) == ["Content-Type"]
    assert list(faults(_send(service, b"", "multipart/form-data; boundary="))) == ["Content-Type"]


@pytest.mark.rule("rest-114")
def test_an_aborted_upload_leaves_nothing_behind(service: RunningService) -> None:
    content = b"x" * 3_000_000
    form = _COMPLETE_FORM % (new_version().encode(), content)
    lines = ["Content-Type: multipart/form-data; boundary=x", f"Content-Length: {len(form)}"]
    with connect_raw(service) as connection:
        connection.send(
            build_head(f"POST {FIRMWARE_PATH}", build_bearer_header(service), *lines) + form[:2_500_000]
        )
        eventually(lambda: list_partial_images(service), "the file of the upload exists")
        connection.hang_up()
    eventually(lambda: not list_partial_images(service), "the file of the upload is deleted")
    assert hash_hex(content) not in list_stored_images(service)


@pytest.mark.rule("rest-27")
def test_a_large_upload_is_not_held_in_memory(
    service: RunningService,
) -> None:
    piece_count = 20
    content = bytes(range(256)) * 4096

    def body() -> Iterator[bytes]:
        form = _COMPLETE_FORM.replace(b"a.bin", b"a.raucb").replace(b"true", b"false")
        head, _, end = form.partition(b"%s\r\n--x--")
        yield head % new_version().encode()
        yield from (content for _ in range(piece_count))
        yield (b"%s\r\n--x--" + end).replace(b"%s", b"")

    tracemalloc.start()
    try:
        response = service.admin.post(
            FIRMWARE_PATH, content=body(), headers={"Content-Type": "multipart/form-data; boundary=x"}
        )
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert response.status_code == 201, response.text
    assert response.json()["size"] == piece_count * len(content)
    assert response.json()["sha256"] == hash_hex(content * piece_count)
    assert peak_bytes < 8 * 1024 * 1024
