"""Diagnostics: an older connection of gateways, on which they ask for the firmware image they are to use.

    meshtech/diagnostics/{g}/server-command/firmware      the gateway asks
    meshtech/diagnostics/{g}/server-response/firmware     the service answers

No topic prefix stands in front of these (topic-9).
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Annotated, Final

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

QUESTION_FILTER: Final = "meshtech/diagnostics/+/server-command/firmware"
"""The filter for the questions of all gateways."""

_QUESTION = re.compile(r"meshtech/diagnostics/([0-9a-f]{12})/server-command/firmware")
_ANSWER = re.compile(r"meshtech/diagnostics/([0-9a-f]{12})/server-response/firmware")


class FirmwareType(IntEnum):
    """How an image is packed (firmware-17)."""

    NORDIC_PACKAGE = 1
    RAUC_BUNDLE = 2


FirmwareTypeField = Annotated[FirmwareType, INTEGER_CODEC]
Sha256Field = Annotated[HexField, Meta(min_length=64, max_length=64)]


class FirmwareQuestion(Payload, frozen=True, kw_only=True):
    """Where is the image for this model in this version? (firmware-16)."""

    model_number: ModelNumberField
    version: VersionField
    firmware_type: FirmwareTypeField


class FirmwareAnswer(Payload, frozen=True, kw_only=True):
    """Here it is (firmware-19)."""

    uri: str
    file_name: str
    firmware_type: FirmwareTypeField
    sha256: Sha256Field | UnsetType = UNSET
    """Of what is behind the uri, as is the size: something to check a download against (firmware-35)."""
    size: CountField | UnsetType = UNSET


def format_question_topic(gateway: Mac) -> str:
    """Where this gateway asks."""
    return f"meshtech/diagnostics/{gateway}/server-command/firmware"


def format_answer_topic(gateway: Mac) -> str:
    """Where this gateway waits for the answer."""
    return f"meshtech/diagnostics/{gateway}/server-response/firmware"


def parse_question_topic(topic: str) -> Mac:
    """Read which gateway asks."""
    found = _QUESTION.fullmatch(topic)
    if found is None:
        raise MalformedTopic("topic", f"{quote_input(topic)} is not the question of a gateway for firmware")
    return Mac(found[1])


def parse_answer_topic(topic: str) -> Mac:
    """Read which gateway is answered."""
    found = _ANSWER.fullmatch(topic)
    if found is None:
        raise MalformedTopic("topic", f"{quote_input(topic)} is not the answer to a gateway about firmware")
    return Mac(found[1])


def encode_question(question_id: str, question: FirmwareQuestion) -> bytes:
    """Write a question."""
    return msgspec.json.encode({"id": question_id, "params": payload.to_json_object(question)})


def decode_question(data: bytes) -> tuple[str, FirmwareQuestion]:
    """Read a question and its id (firmware-15)."""
    envelope = payload.decode_object(data)
    return _id(envelope), payload.build_payload(FirmwareQuestion, _object(envelope, "params"))


def encode_answer(question_id: str, answer: FirmwareAnswer | None) -> bytes:
    """Write the answer to a question; None: there is no such image (firmware-18)."""
    if answer is None:
        return msgspec.json.encode({"id": question_id, "success": False})
    return msgspec.json.encode({"id": question_id, "success": True, "result": payload.to_json_object(answer)})


def decode_answer(data: bytes) -> tuple[str, FirmwareAnswer | None]:
    """Read an answer and the id of its question; None: there is no such image."""
    envelope = payload.decode_object(data)
    success = envelope.get("success")
    if not isinstance(success, bool):
        raise MalformedPayload("success", "is not there as a boolean")
    return _id(envelope), payload.build_payload(
        FirmwareAnswer, _object(envelope, "result")
    ) if success else None


def _id(envelope: dict[str, Json]) -> str:
    question_id = envelope.get("id")
    if not isinstance(question_id, str):
        raise MalformedPayload("id", "is not there as a string")
    return question_id


def _object(envelope: dict[str, Json], field: str) -> dict[str, Json]:
    value = envelope.get(field)
    if not isinstance(value, dict):
        raise MalformedPayload(field, "is not there as an object")
    return value
