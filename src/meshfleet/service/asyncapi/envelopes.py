"""The envelopes of diagnostics: an id around what is asked, and around what is answered."""

from __future__ import annotations

from typing import Any, Final

from meshfleet.service.asyncapi.schemas import reference_to, schema_of
from meshfleet.wire.diagnostics import FirmwareAnswer, FirmwareQuestion

QUESTION: Final = "FirmwareCommand"
ANSWER: Final = "FirmwareResponse"

_ID: Final = {"type": "string", "description": "Chosen by the gateway; the answer has the same."}


def question_schemas() -> dict[str, dict[str, Any]]:
    """What a gateway asks (firmware-15)."""
    inner = FirmwareQuestion.__name__
    return {
        QUESTION: {
            "title": QUESTION,
            "description": "A question, and its id.",
            "type": "object",
            "properties": {"id": _ID, "params": reference_to(inner)},
            "required": ["id", "params"],
        },
        inner: schema_of(FirmwareQuestion),
    }


def answer_schemas() -> dict[str, dict[str, Any]]:
    """What it is answered (firmware-18, firmware-19)."""
    inner = FirmwareAnswer.__name__
    found = {"type": "boolean", "description": "False: there is no such image, and no `result`."}
    return {
        ANSWER: {
            "title": ANSWER,
            "description": "The answer to a question with the same id.",
            "type": "object",
            "properties": {"id": _ID, "success": found, "result": reference_to(inner)},
            "required": ["id", "success"],
            "if": {"properties": {"success": {"const": True}}},
            "then": {"required": ["result"]},
        },
        inner: schema_of(FirmwareAnswer),
    }
