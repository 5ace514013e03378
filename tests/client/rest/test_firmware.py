"""Firmware through the SDK, with a running service."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.client import Fleet
from meshfleet.errors import AlreadyExists, ImageCheckFailed, ImageDamaged, InvalidRequest, NotFound
from meshfleet.errors.protocol import MalformedInput
from tests.client.rest.scripted_server import build_response, scripted_server
from tests.service.firmware.uploads import BUNDLE, MODEL, new_content, new_version, package

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio

PACKAGE = package("3.4.2")


def list_names(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


async def test_an_uploaded_image_is_downloaded_unchanged(fleet: Fleet, tmp_path: Path) -> None:
    image = tmp_path / 'image "1" ☕.zip'
    image.write_bytes(PACKAGE)
    record = await fleet.firmware.upload(
        image,
        model_number=MODEL,
        version="3.4.2",
        hardware_versions=["1.0.0", "1.2.0"],
        min_version="3.0.0",
        notes="first\nsecond",
    )
    assert (record.file_name, record.size, record.state) == (image.name, len(PACKAGE), "draft")
    assert (record.hardware_versions, record.min_version) == (["1.0.0", "1.2.0"], "3.0.0")
    assert record.notes == "first\nsecond"
    assert record.sha256 == hashlib.sha256(PACKAGE).hexdigest()
    assert b"".join([chunk async for chunk in fleet.firmware.download(record)]) == PACKAGE
    copy = tmp_path / "copy"
    assert await fleet.firmware.save(record.id, copy) == record
    assert copy.read_bytes() == PACKAGE
    assert list_names(tmp_path) == {image.name, "copy"}, "no other files are left"


async def test_an_open_file_is_uploaded_from_its_position(fleet: Fleet) -> None:
    file = io.BytesIO(b"skipped" + BUNDLE)
    file.seek(len(b"skipped"))
    record = await fleet.firmware.upload(
        file, model_number=MODEL, version=new_version(), file_name="a.raucb", type=2
    )
    assert (record.size, record.type) == (len(BUNDLE), 2)


async def test_a_bare_image_is_marked_and_one_that_fails_its_check_needs_an_override(fleet: Fleet) -> None:
    form: Any = {"model_number": MODEL, "file_name": "a.bin"}
    record = await fleet.firmware.upload(io.BytesIO(new_content()), version=new_version(), bare=True, **form)
    assert (record.bare, record.type) == (True, 1)
    version = new_version()
    with pytest.raises(ImageCheckFailed, match="5 bytes"):
        await fleet.firmware.upload(io.BytesIO(b"hello"), version=version, bare=True, **form)
    record = await fleet.firmware.upload(
        io.BytesIO(b"hello"), version=version, bare=True, override=True, **form
    )
    assert (record.bare, record.size) == (True, 5)


async def test_a_record_can_be_released_withdrawn_and_deleted(fleet: Fleet) -> None:
    version = new_version()
    form: Any = {"model_number": MODEL, "version": version, "file_name": "a.raucb"}
    record = await fleet.firmware.upload(io.BytesIO(new_content()), **form)
    with pytest.raises(AlreadyExists):
        await fleet.firmware.upload(io.BytesIO(new_content()), **form)
    assert [each.id async for each in fleet.firmware.list(version=version, state="draft")] == [record.id]
    assert [each.id async for each in fleet.firmware.list(model_number="7FFF")] == []
    assert (await fleet.firmware.release(record)).state == "released"
    assert (await fleet.firmware.withdraw(record.id)).state == "withdrawn"
    await fleet.firmware.remove(record)
    with pytest.raises(NotFound):
        await fleet.firmware.show(record)


async def test_an_image_with_a_wrong_hash_is_refused(fleet: Fleet) -> None:
    with pytest.raises(InvalidRequest, match="sha256"):
        await fleet.firmware.upload(
            io.BytesIO(new_content()),
            model_number=MODEL,
            version=new_version(),
            file_name="a.raucb",
            sha256="0" * 64,
        )


async def test_a_directory_is_not_uploaded(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(MalformedInput, match="not a file"):
        await fleet.firmware.upload(tmp_path, model_number=MODEL, version="1.0.0")


async def test_records_of_an_older_service_may_lack_fields_that_were_added_later(
    service: LiveService, fleet: Fleet
) -> None:
    record = await fleet.firmware.upload(
        io.BytesIO(new_content()), model_number=MODEL, version=new_version(), file_name="a.raucb"
    )
    mac = service.new_mac()
    await fleet.gateways.claim(mac)
    gateway = await fleet.gateways.show(mac)
    bodies = [msgspec.to_builtins(each) for each in (record, gateway)]
    for body, added in zip(bodies, ("bare", "clockOffset"), strict=True):
        del body[added]
    async with (
        scripted_server(*(build_response(200, body) for body in bodies)) as server,
        Fleet(server.url, token="mfk_key") as other,  # noqa: S106 # not a real key
    ):
        assert await other.firmware.show(record) == record
        assert await other.gateways.show(mac) == gateway


async def test_a_damaged_download_leaves_the_existing_file_unchanged(fleet: Fleet, tmp_path: Path) -> None:
    record = await fleet.firmware.upload(
        io.BytesIO(new_content()), model_number=MODEL, version=new_version(), file_name="a.raucb"
    )
    existing = tmp_path / "image"
    existing.write_text("as it was")
    record_response = build_response(200, msgspec.json.encode(record))
    damaged = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 3\r\n\r\nbad"
    async with (
        scripted_server(record_response, damaged) as server,
        Fleet(server.url, token="mfk_key") as other,  # noqa: S106 # not a real key
    ):
        with pytest.raises(ImageDamaged):
            await other.firmware.save(record, existing)
    assert list_names(tmp_path) == {"image"}
    assert existing.read_text() == "as it was"
