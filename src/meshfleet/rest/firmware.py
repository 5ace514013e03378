"""JSON bodies of the REST API: firmware records."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from meshfleet.rest.bodies import ResponseBody, TimeText
from meshfleet.rest.devices import ModelNumberText  # noqa: TC001 # msgspec reads it

FIRMWARE_PATH: Final = "/api/v1/firmware"

IMAGES_PATH: Final = "/api/v1/images"
"""Path of signed URLs at which gateways download firmware images (firmware-20)."""

VersionText = Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+(-beta\.\d+)?$")]
FirmwareState = Literal["draft", "released", "withdrawn"]


class Firmware(ResponseBody, frozen=True, kw_only=True):
    """Metadata of an uploaded firmware image (rest-107)."""

    id: str
    model_number: ModelNumberText
    version: VersionText
    type: Literal[1, 2]
    """Type of the image file: 1 for a Nordic package or a bare image, 2 for a RAUC bundle (firmware-17)."""
    bare: bool = False
    """Whether the file is a bare image, without a package that contains the model and version."""
    file_name: str
    size: int
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    hardware_versions: list[str]
    """Hardware versions on which the firmware runs, as devices report them; empty for all versions."""
    min_version: VersionText | None
    """Oldest installed version that can be updated to this firmware; None for any version."""
    notes: str
    state: FirmwareState
    created_by: str
    created_at: TimeText
    released_at: TimeText | None


class FirmwarePage(ResponseBody, frozen=True, kw_only=True):
    """Page of firmware records, the newest record first."""

    items: list[Firmware]
    next_token: str | None
