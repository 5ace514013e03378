"""`meshfleet explain`: decode MQTT messages captured from a broker and check them against the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import click
import msgspec
from msgspec import UNSET, UnsetType

from meshfleet.cli.options import table_option
from meshfleet.cli.terminal import to_printable
from meshfleet.errors.protocol import MalformedInput, UndecodableValue
from meshfleet.protocol import payload, reports, requests, responses
from meshfleet.protocol.codes import Status
from meshfleet.protocol.fields import Json
from meshfleet.protocol.hex import parse_hex
from meshfleet.protocol.ids import Mac
from meshfleet.protocol.topics import (
    BroadcastTopic,
    ReportTopic,
    RequestTopic,
    ResponseTopic,
    Topic,
    TopicCodec,
)

if TYPE_CHECKING:
    from meshfleet.protocol.codes import Kind, Operation
    from meshfleet.protocol.identifiers import DecodedValue, IdentifierCatalogue, IdentifierDefinition


@click.command()
@click.argument("messages", type=click.File("rb"), default="-")
@table_option
@click.option("--topic-prefix", default="", help="Prefix in front of mt/ in every MQTT topic.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
def explain(messages: BinaryIO, catalogue: IdentifierCatalogue, topic_prefix: str, *, as_json: bool) -> None:
    """Decode MQTT messages of gateways and their clients, or explain why a message is invalid.

    MESSAGES is a file (default: standard input) with a topic, a space and a payload on each line, as
    printed by `mosquitto_sub -v -t 'mt/#'`.
    """
    topics = TopicCodec(topic_prefix, identifier_names=catalogue.names)
    for line in messages:
        topic, _, data = line.rstrip(b"\r\n").partition(b" ")
        if topic:
            found = _explain_message(topic.decode(errors="replace"), data, topics, catalogue)
            click.echo(msgspec.json.encode(found) if as_json else _format_explanation(found))


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why an MQTT message is invalid."""

    code: str
    field: str
    reason: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Decoded content of one MQTT message, as printed with `--json`."""

    message: str
    """Type of the message: `report`, `request`, `response`, or `rejected` if the message is invalid."""
    gateway: Mac | None = None
    device: Mac | None = None
    word: str = ""
    """Kind of a report, or operation of a request or response."""
    identifier: str | None = None
    name: str | None = None
    payload: dict[str, Json] = {}
    decoded: Json | UnsetType = UNSET
    ext: dict[str, Json] | None = None
    undecodable: str = ""
    """Reason why the raw value (hex) cannot be decoded; empty if it is decoded or has no known layout."""
    unit: str = ""
    topic: str = ""
    error: Rejection | None = None


def _explain_message(
    topic: str, data: bytes, topics: TopicCodec, catalogue: IdentifierCatalogue
) -> Explanation:
    try:
        parsed = topics.parse(topic)
        body = _decode_payload(parsed, data)
    except MalformedInput as exc:
        return Explanation(
            message="rejected",
            topic=topic,
            error=Rejection(code=exc.code, field=exc.field, reason=exc.reason),
        )
    entry = catalogue.find(parsed.identifier) if parsed.identifier else None
    decoded, undecodable = (
        _decode_value(body.get("value"), entry)
        if not _get_kind_or_operation(parsed).is_decoded
        else (None, "")
    )
    return Explanation(
        message=_MESSAGE_TYPES[type(parsed)],
        gateway=None if isinstance(parsed, BroadcastTopic) else parsed.gateway,
        device=parsed.device,
        word=_get_kind_or_operation(parsed),
        identifier=parsed.identifier,
        name=entry.name if entry else None,
        payload=body,
        decoded=decoded.value if decoded else UNSET,
        ext=decoded.ext if decoded else None,
        undecodable=undecodable,
        unit=entry.unit if entry else "",
    )


_MESSAGE_TYPES = {
    ReportTopic: "report",
    RequestTopic: "request",
    BroadcastTopic: "request",
    ResponseTopic: "response",
}


def _get_kind_or_operation(topic: Topic) -> Kind | Operation:
    return topic.kind if isinstance(topic, ReportTopic) else topic.operation


def _decode_payload(topic: Topic, data: bytes) -> dict[str, Json]:
    """Decode the payload of a message with this topic to JSON fields. Secret keys are replaced by `…`."""
    match topic:
        case ReportTopic():
            return payload.to_json_object(reports.decode_report(topic.kind, data))
        case ResponseTopic():
            return payload.to_json_object(responses.decode_response(topic.operation, data))
    fields = payload.to_json_object(requests.decode_request(topic.operation, data))
    return {name: "…" if name in _SECRET_FIELDS else value for name, value in fields.items()}


_SECRET_FIELDS = {"key", "publicKey"}


def _decode_value(value: Json, entry: IdentifierDefinition | None) -> tuple[DecodedValue | None, str]:
    """Decode a raw value (hex) if its layout is known.

    Return the decoded value, or None, and the reason why the value does not fit the layout, or "".
    """
    if entry is None or entry.layout is None or not isinstance(value, str):
        return None, ""
    try:
        return entry.decode(parse_hex(value)), ""
    except UndecodableValue as exc:
        return None, exc.reason


def _format_explanation(found: Explanation) -> str:
    if found.error:
        return to_printable(f"rejected  {found.topic}: {found.error.field}: {found.error.reason}")
    rest = dict(found.payload)
    value = rest.pop("value", UNSET)
    subject = found.name or found.identifier or ""
    if value is not UNSET:
        subject += (
            f" = {_encode_json(value if found.decoded is UNSET else found.decoded)} {found.unit}".rstrip()
        )
    if found.decoded is not UNSET:
        subject += f" (raw {value})"
    if found.undecodable:
        subject += f" (not decoded: {found.undecodable})"
    details = (_format_detail(name, field) for name, field in {**rest, **(found.ext or {})}.items())
    line = f"{found.message:<9} {found.device}  {found.word:<19} {subject:<40} {'  '.join(details)}"
    return to_printable(line.rstrip())


def _format_detail(name: str, value: Json) -> str:
    text = value if isinstance(value, str) else _encode_json(value)
    if name in {"status", "error"} and value in _STATUS_NAMES:
        text += f" ({_STATUS_NAMES[value]})"
    return f"{name} {text}"


_STATUS_NAMES = {int(status): status.name.lower().replace("_", "-") for status in Status if status}


def _encode_json(value: Json) -> str:
    return msgspec.json.encode(value).decode()
