"""Firmware of a test's own, in the catalogue of the demo: gone in the end, unless a job has used it."""

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
"""A model that devices of the demo have, and for which the demo has no firmware."""


_models = count()


def new_model() -> str:
    """A model that nobody else has firmware for, and no device is of."""
    return f"E{next(_models):03X}"


def build_test_package(model: str, version: str) -> bytes:
    """An image as an admin uploads it."""
    return build_package(
        f"{model} {version} ".encode() * 500,
        model_number=ModelNumber(model),
        version=Version.parse(version),
    )


def compress_package(package: bytes) -> bytes:
    """The same package as tools write it that compress their zips."""
    packed = BytesIO()
    with ZipFile(BytesIO(package)) as before, ZipFile(packed, "w", ZIP_DEFLATED) as after:
        for name in before.namelist():
            after.writestr(name, before.read(name))
    return packed.getvalue()


@contextmanager
def uploaded_firmware(
    demo: ServiceProcess, model: str, version: str, *, is_released: bool = False, **fields: str
) -> Iterator[str]:
    """Firmware that is in the catalogue; its id. `fields` are others of the form."""
    made = demo.upload(model, version, build_test_package(model, version), **fields)
    try:
        if is_released:
            demo.call("POST", f"/api/v1/firmware/{made}/release")
        yield made
    finally:
        listed = demo.call("GET", f"/api/v1/firmware?ModelNumber={model}&Version={version}")["items"]
        if listed and not demo.call("GET", f"/api/v1/jobs?FirmwareId={made}")["items"]:
            demo.call("DELETE", f"/api/v1/firmware/{made}")


def delete_firmware(demo: ServiceProcess, model: str) -> None:
    """Delete whatever there is for a model of a test's own."""
    for each in demo.call("GET", f"/api/v1/firmware?ModelNumber={model}")["items"]:
        demo.call("DELETE", f"/api/v1/firmware/{each['id']}")
