"""What the bodies of the REST interface have in common, and how they are read."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from meshfleet.errors.protocol import MalformedPayload
from meshfleet.protocol import payload
from meshfleet.protocol.decoders import get_decoder

IdentifierText = Annotated[str, Meta(pattern="^(?:[0-9a-f]{2}){1,4}$")]
MacText = Annotated[str, Meta(pattern="^[0-9a-f]{12}$")]
DeviceIdText = Annotated[str, Meta(pattern="^bmac-[0-9a-f]{12}$")]
TimeText = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
"""As `times.write_time` spells it."""


class ResponseBody(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is answered. Clients ignore fields that they do not know.

    A service sends every field but those that are `UNSET`. A field that is added later has a default, so that
    clients read answers of older services, too; other fields have none, but for those of one value.
    """


class RequestBody(
    Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """What is asked. Unknown fields are refused: a misspelt one must not be taken for absent (rest-5)."""


BodyT = TypeVar("BodyT", bound=RequestBody | ResponseBody)


def decode_body(kind: type[BodyT], data: bytes) -> BodyT:
    """Read the body of a request or an answer, or raise a `WireError` that names the field."""
    try:
        return get_decoder(kind).decode(payload.decode_utf8(data))
    except MalformedPayload as exc:
        raise MalformedPayload("body", exc.reason) from None
    except msgspec.ValidationError as exc:
        wrong = payload.to_malformed_payload(kind, exc)
        raise MalformedPayload("body" if wrong.field == "payload" else wrong.field, wrong.reason) from None
    except msgspec.DecodeError as exc:
        raise MalformedPayload("body", f"cannot be read as JSON: {exc}") from exc
    except RecursionError:
        raise MalformedPayload("body", "is nested too deeply") from None
