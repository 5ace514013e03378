"""JSON schemas of payloads, made of the structs that read and write them."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

import msgspec

from meshfleet.service.asyncapi.meanings import meaning_of, named
from meshfleet.service.asyncapi.spellings import spelling_of
from meshfleet.wire import gating

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.wire.codes import Kind, Operation
    from meshfleet.wire.payload import Payload

_RULES: Final = re.compile(r" \([a-z]+-\d[^)]*\)")
"""Docstrings name the rules that they keep, which is for readers of the source."""


def schema_of(
    payload: type[Payload], part: gating.Part | None = None, of: Kind | Operation | None = None
) -> dict[str, Any]:
    """Describe a payload as it is sent; `part` and `of` tell since when its fields exist."""
    parts = msgspec.json.schema_components([payload], schema_hook=_text)[1]
    schema: dict[str, Any] = parts[payload.__name__]
    # Later versions may send more, and readers leave alone what they do not know.
    del schema["additionalProperties"]
    schema["description"] = _plain(schema["description"])
    hints = get_type_hints(payload, include_extras=True)
    for field in msgspec.structs.fields(payload):
        since = gating.since(part, of, field.encode_name) if part else None
        schema["properties"][field.encode_name] = _field(
            schema["properties"][field.encode_name],
            hints[field.name],
            meaning=meaning_of(payload.__name__, field.encode_name),
            since=None if since is None else str(since),
        )
    return schema


def reference_to(name: str) -> dict[str, str]:
    """Point to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def _text(_kind: type) -> dict[str, Any]:
    """For our own types, which are all written as text; `spellings` knows more."""
    return {"type": "string"}


def _field(schema: Mapping[str, Any], hint: object, *, meaning: str, since: str | None) -> dict[str, Any]:
    # What stands beside a `$ref` does not count, so the few numbers and words of an enum are told in place.
    described = {key: value for key, value in schema.items() if key != "$ref"}
    if (values := _enum_in(hint)) is not None:
        numbers = issubclass(values, int)
        described["type"] = "integer" if numbers else "string"
        described["enum"] = sorted(each.value for each in values)
        meaning = f"{meaning} {named(values)}." if numbers else meaning
    spelt = spelling_of(hint)
    if "type" in spelt.schema:
        described.pop("anyOf", None)
    told = [meaning, spelt.tolerated, f"Since version {since}." if since else ""]
    described |= {**spelt.schema, "description": " ".join(filter(None, told))}
    return described | ({"x-since": since} if since else {})


def _enum_in(hint: object) -> type[Enum] | None:
    """The closed set that a field is of, be it optional or not."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return next(filter(None, map(_enum_in, get_args(hint))), None)


def _plain(docstring: str) -> str:
    return _RULES.sub("", docstring).replace("None", "null").replace("?.", "?")
