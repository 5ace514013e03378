"""Diagnostics topics, on which gateways request the location of a firmware image ({g}: MAC of the gateway).

    meshtech/diagnostics/{g}/server-command/firmware      request of the gateway
    meshtech/diagnostics/{g}/server-response/firmware     response of the service

The topics never have the topic prefix of the installation (topic-9).
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedPayload, MalformedTopic
from meshfleet.protocol import payload
from meshfleet.protocol.fields import (
    INTEGER_CODEC,
    CountField,
    HexField,
    Json,
    ModelNumberField,
    VersionField,
)
from meshfleet.protocol.ids import Mac
from meshfleet.protocol.payload import Payload

IMAGE_REQUEST_FILTER: Final = "meshtech/diagnostics/+/server-command/firmware"
"""Topic filter for the image requests of all gateways."""

_IMAGE_REQUEST_TOPIC = re.compile(r"meshtech/diagnostics/([0-9a-f]{12})/server-command/firmware")


class FirmwareType(IntEnum):
    """Packaging of a firmware image (firmware-17)."""

    NORDIC_PACKAGE = 1
    RAUC_BUNDLE = 2


FirmwareTypeField = Annotated[FirmwareType, INTEGER_CODEC]
Sha256Field = Annotated[HexField, Meta(min_length=64, max_length=64)]


class ImageRequest(Payload, frozen=True, kw_only=True):
    """Request of a gateway for the firmware image of a model and version (firmware-16)."""

    model_number: ModelNumberField
    version: VersionField
    firmware_type: FirmwareTypeField


class ImageLocation(Payload, frozen=True, kw_only=True):
    """Response to a gateway with the location of a firmware image (firmware-19)."""

    uri: str
    file_name: str
    firmware_type: FirmwareTypeField
    sha256: Sha256Field | UnsetType = UNSET
    """SHA-256 hash of the file at `uri`, with which the gateway verifies the download (firmware-35)."""
    size: CountField | UnsetType = UNSET


class ReceivedImageRequest(NamedTuple):
    """Decoded request of a gateway for the location of a firmware image."""

    id: str
    """Id of the request, which the response repeats."""
    request: ImageRequest


class ReceivedImageResponse(NamedTuple):
    """Decoded response to a request for the location of a firmware image."""

    id: str
    """Id of the request that the response belongs to."""
    location: ImageLocation | None
    """Location of the firmware image; None if no such image exists."""


def format_image_request_topic(gateway: Mac) -> str:
    """Return the topic on which a gateway requests the location of a firmware image."""
    return f"meshtech/diagnostics/{gateway}/server-command/firmware"


def format_image_response_topic(gateway: Mac) -> str:
    """Return the topic on which a gateway expects the response to its image request."""
    return f"meshtech/diagnostics/{gateway}/server-response/firmware"


def parse_image_request_topic(topic: str) -> Mac:
    """Return the MAC of the gateway that requests a firmware image on a topic, or raise `MalformedTopic`."""
    match = _IMAGE_REQUEST_TOPIC.fullmatch(topic)
    if match is None:
        raise MalformedTopic("topic", f"{quote_input(topic)} is not a firmware request topic")
    return Mac(match[1])


def encode_image_request(request_id: str, request: ImageRequest) -> bytes:
    """Encode the payload of a gateway's image request."""
    return msgspec.json.encode({"id": request_id, "params": payload.to_json_object(request)})


def decode_image_request(data: bytes) -> ReceivedImageRequest:
    """Decode the payload of a gateway's image request (firmware-15)."""
    envelope = payload.decode_object(data)
    return ReceivedImageRequest(
        _get_id(envelope), payload.build_payload(ImageRequest, _get_object(envelope, "params"))
    )


def encode_image_response(request_id: str, location: ImageLocation | None) -> bytes:
    """Encode the response to an image request. `location` is None if there is no such image (firmware-18)."""
    if location is None:
        return msgspec.json.encode({"id": request_id, "success": False})
    return msgspec.json.encode(
        {"id": request_id, "success": True, "result": payload.to_json_object(location)}
    )


def decode_image_response(data: bytes) -> ReceivedImageResponse:
    """Decode the response to an image request."""
    envelope = payload.decode_object(data)
    success = envelope.get("success")
    if not isinstance(success, bool):
        raise MalformedPayload("success", "is missing or not a boolean")
    request_id = _get_id(envelope)
    if not success:
        return ReceivedImageResponse(request_id, None)
    return ReceivedImageResponse(
        request_id, payload.build_payload(ImageLocation, _get_object(envelope, "result"))
    )


def _get_id(envelope: dict[str, Json]) -> str:
    request_id = envelope.get("id")
    if not isinstance(request_id, str):
        raise MalformedPayload("id", "is missing or not a string")
    return request_id


def _get_object(envelope: dict[str, Json], field: str) -> dict[str, Json]:
    value = envelope.get(field)
    if not isinstance(value, dict):
        raise MalformedPayload(field, "is missing or not an object")
    return value
