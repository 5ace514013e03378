"""Firmware that a test adds to the demo; deleted at its end, unless a job has used it."""

from __future__ import annotations

from contextlib import contextmanager
from io import BytesIO
from itertools import count
from typing import TYPE_CHECKING, Final
from zipfile import ZIP_DEFLATED, ZipFile

from meshfleet.protocol.firmware_image import build_package
from meshfleet.protocol.ids import ModelNumber, Version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.service_process import ServiceProcess

FLEET_MODEL: Final = "0063"
"""Model of devices of the demo, for which it has no firmware."""


_models = count()


def new_model() -> str:
    """Return a model number without firmware and without devices."""
    return f"E{next(_models):03X}"


def build_test_package(model: str, version: str) -> bytes:
    """Build a firmware package for an upload."""
    return build_package(
        f"{model} {version} ".encode() * 500,
        model_number=ModelNumber(model),
        version=Version.parse(version),
    )


def compress_package(package: bytes) -> bytes:
    """Return a package as a compressed zip file, which other tools create."""
    buffer = BytesIO()
    with ZipFile(BytesIO(package)) as source, ZipFile(buffer, "w", ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    return buffer.getvalue()


@contextmanager
def uploaded_firmware(
    demo: ServiceProcess, model: str, version: str, *, is_released: bool = False, **fields: str
) -> Iterator[str]:
    """Upload firmware and yield its id. `fields` are further fields of the form."""
    firmware = demo.upload(model, version, build_test_package(model, version), **fields)
    try:
        if is_released:
            demo.call("POST", f"/api/v1/firmware/{firmware}/release")
        yield firmware
    finally:
        listed = demo.call("GET", f"/api/v1/firmware?ModelNumber={model}&Version={version}")["items"]
        if listed and not demo.call("GET", f"/api/v1/jobs?FirmwareId={firmware}")["items"]:
            demo.call("DELETE", f"/api/v1/firmware/{firmware}")


def delete_firmware(demo: ServiceProcess, model: str) -> None:
    """Delete all firmware of a model."""
    for each in demo.call("GET", f"/api/v1/firmware?ModelNumber={model}")["items"]:
        demo.call("DELETE", f"/api/v1/firmware/{each['id']}")
