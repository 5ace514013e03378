"""Base classes of the JSON bodies of the REST API, and the function that decodes bodies."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeVar

import msgspec
from msgspec import Meta, Struct

from meshfleet.errors.protocol import MalformedPayload
from meshfleet.protocol import payload
from meshfleet.protocol.decoders import get_decoder

IdentifierText = Annotated[str, Meta(pattern="^(?:[0-9a-f]{2}){1,4}$")]
MacText = Annotated[str, Meta(pattern="^[0-9a-f]{12}$")]
DeviceIdText = Annotated[str, Meta(pattern="^bmac-[0-9a-f]{12}$")]
TimeText = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
"""Time in UTC with milliseconds, such as `2026-11-15T10:00:00.000Z`, as written by `times.format_time`."""


class ResponseBody(Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of response bodies of the REST API. Clients ignore fields that they do not know.

    A service sends every field that is not `UNSET`. A field added in a later version needs a default, so that
    clients can decode responses of older services. Other fields have no default, unless they have only one
    possible value.
    """


class RequestBody(
    Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Base class of request bodies of the REST API.

    A body with unknown fields is refused, because a misspelt field must not count as absent (rest-5).
    """


class HidesSecrets:
    """Mixin for bodies with passwords, tokens or keys: `repr()` contains only the fields named in `shown`."""

    __slots__ = ()
    shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        fields = [f"{name}={value!r}" for name, value in self.__rich_repr__()]
        return f"{type(self).__name__}({', '.join([*fields, '…'])})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [(name, getattr(self, name)) for name in self.shown]


BodyT = TypeVar("BodyT", bound=RequestBody | ResponseBody)


def decode_body(kind: type[BodyT], data: bytes) -> BodyT:
    """Decode a JSON body of a request or response. Raise `MalformedPayload` that names the invalid field."""
    try:
        return get_decoder(kind).decode(payload.decode_utf8(data))
    except MalformedPayload as exc:
        raise MalformedPayload("body", exc.reason) from None
    except msgspec.ValidationError as exc:
        malformed = payload.to_malformed_payload(kind, exc)
        raise MalformedPayload(
            "body" if malformed.field == "payload" else malformed.field, malformed.reason
        ) from None
    except msgspec.DecodeError as exc:
        raise MalformedPayload("body", f"is not valid JSON: {exc}") from exc
    except RecursionError:
        raise MalformedPayload("body", "is nested too deeply") from None
