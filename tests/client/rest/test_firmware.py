"""Firmware through the SDK, at a service that runs."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.client import Fleet
from meshfleet.errors import AlreadyExists, ImageCheckFailed, ImageDamaged, InvalidRequest, NotFound
from meshfleet.errors.protocol import WireError
from tests.client.rest.scripted_server import build_response, scripted_server
from tests.service.firmware.uploads import BUNDLE, MODEL, new_content, new_version, package

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio

PACKAGE = package("3.4.2")


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


async def test_an_image_goes_up_from_a_path_and_comes_back_the_same(fleet: Fleet, tmp_path: Path) -> None:
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
    assert b"".join([piece async for piece in fleet.firmware.download(record)]) == PACKAGE
    copy = tmp_path / "copy"
    assert await fleet.firmware.save(record.id, copy) == record
    assert copy.read_bytes() == PACKAGE
    assert names(tmp_path) == {image.name, "copy"}, "nothing else is left"


async def test_an_open_file_goes_up_from_where_it_is(fleet: Fleet) -> None:
    file = io.BytesIO(b"skipped" + BUNDLE)
    file.seek(len(b"skipped"))
    record = await fleet.firmware.upload(
        file, model_number=MODEL, version=new_version(), file_name="a.raucb", type=2
    )
    assert (record.size, record.type) == (len(BUNDLE), 2)


async def test_a_bare_image_says_so_and_one_that_fails_its_check_needs_an_override(fleet: Fleet) -> None:
    given: Any = {"model_number": MODEL, "file_name": "a.bin"}
    record = await fleet.firmware.upload(io.BytesIO(new_content()), version=new_version(), bare=True, **given)
    assert (record.bare, record.type) == (True, 1)
    version = new_version()
    with pytest.raises(ImageCheckFailed, match="5 bytes"):
        await fleet.firmware.upload(io.BytesIO(b"hello"), version=version, bare=True, **given)
    record = await fleet.firmware.upload(
        io.BytesIO(b"hello"), version=version, bare=True, override=True, **given
    )
    assert (record.bare, record.size) == (True, 5)


async def test_a_record_lives_from_draft_to_its_end(fleet: Fleet) -> None:
    version = new_version()
    given: Any = {"model_number": MODEL, "version": version, "file_name": "a.raucb"}
    record = await fleet.firmware.upload(io.BytesIO(new_content()), **given)
    with pytest.raises(AlreadyExists):
        await fleet.firmware.upload(io.BytesIO(new_content()), **given)
    assert [each.id async for each in fleet.firmware.list(version=version, state="draft")] == [record.id]
    assert [each.id async for each in fleet.firmware.list(model_number="7FFF")] == []
    assert (await fleet.firmware.release(record)).state == "released"
    assert (await fleet.firmware.withdraw(record.id)).state == "withdrawn"
    await fleet.firmware.remove(record)
    with pytest.raises(NotFound):
        await fleet.firmware.show(record)


async def test_an_image_with_another_hash_than_was_told_is_not_taken(fleet: Fleet) -> None:
    with pytest.raises(InvalidRequest, match="sha256"):
        await fleet.firmware.upload(
            io.BytesIO(new_content()),
            model_number=MODEL,
            version=new_version(),
            file_name="a.raucb",
            sha256="0" * 64,
        )


async def test_what_is_no_file_is_never_sent(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(WireError, match="no file"):
        await fleet.firmware.upload(tmp_path, model_number=MODEL, version="1.0.0")


async def test_records_of_an_older_service_lack_fields_that_were_added_later(
    service: LiveService, fleet: Fleet
) -> None:
    record = await fleet.firmware.upload(
        io.BytesIO(new_content()), model_number=MODEL, version=new_version(), file_name="a.raucb"
    )
    mac = service.new_mac()
    await fleet.gateways.claim(mac)
    gateway = await fleet.gateways.show(mac)
    sent = [msgspec.to_builtins(each) for each in (record, gateway)]
    for each, added in zip(sent, ("bare", "clockOffset"), strict=True):
        del each[added]
    async with (
        scripted_server(*(build_response(200, each) for each in sent)) as server,
        Fleet(server.url, token="mfk_key") as other,  # noqa: S106 # of nobody
    ):
        assert await other.firmware.show(record) == record
        assert await other.gateways.show(mac) == gateway


async def test_an_image_that_comes_damaged_leaves_nothing(fleet: Fleet, tmp_path: Path) -> None:
    record = await fleet.firmware.upload(
        io.BytesIO(new_content()), model_number=MODEL, version=new_version(), file_name="a.raucb"
    )
    kept = tmp_path / "image"
    kept.write_text("as it was")
    shown = build_response(200, msgspec.json.encode(record))
    damaged = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 3\r\n\r\nbad"
    async with scripted_server(shown, damaged) as server, Fleet(server.url, token="mfk_key") as other:  # noqa: S106
        with pytest.raises(ImageDamaged):
            await other.firmware.save(record, kept)
    assert names(tmp_path) == {"image"}
    assert kept.read_text() == "as it was"
