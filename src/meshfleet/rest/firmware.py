"""Bodies of firmware records."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from meshfleet.rest.bodies import ResponseBody, TimeText
from meshfleet.rest.devices import ModelNumberText  # noqa: TC001 # msgspec reads it

FIRMWARE_PATH: Final = "/api/v1/firmware"

IMAGES_PATH: Final = "/api/v1/images"
"""Path of signed image downloads for gateways (firmware-20)."""

VersionText = Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+(-beta\.\d+)?$")]
FirmwareState = Literal["draft", "released", "withdrawn"]


class Firmware(ResponseBody, frozen=True, kw_only=True):
    """Firmware record: an image and its metadata (rest-107)."""

    id: str
    model_number: ModelNumberText
    version: VersionText
    type: Literal[1, 2]
    """1 is a Nordic distribution package or a bare image, 2 a RAUC bundle (firmware-17)."""
    bare: bool = False
    """Whether the file is an image without a package: the uploader stated its model and version."""
    file_name: str
    size: int
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    hardware_versions: list[str]
    """Hardware versions that the image supports, as devices report them; empty for any."""
    min_version: VersionText | None
    """Oldest installed version from which a device can be updated; None for any."""
    notes: str
    state: FirmwareState
    created_by: str
    created_at: TimeText
    released_at: TimeText | None


class FirmwarePage(ResponseBody, frozen=True, kw_only=True):
    """Page of firmware records, the newest first."""

    items: list[Firmware]
    next_token: str | None
