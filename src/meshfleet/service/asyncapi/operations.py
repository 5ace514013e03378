"""The operations: what the service sends and receives, and which answer belongs to what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from meshfleet.service.asyncapi import channels
from meshfleet.wire.codes import Kind, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.service.asyncapi.channels import Channel

_BINDINGS: Final = {"mqtt": {"qos": 1, "retain": False, "bindingVersion": "0.2.0"}}

_ACKNOWLEDGED: Final = (
    "The embedded broker acknowledges a report (PUBACK) when the database has committed it. "
    "What cannot be read is acknowledged all the same, and kept with the reason at `/api/v1/rejects`."
)
_ANSWERED: Final = (
    "The response comes on the topic with the same device, operation and identifier, and has the `id` "
    "of the request."
)
_BY_EACH: Final = "Each gateway that knows the device answers, with the `id` of the request."
_NOT_ANSWERED: Final = "It is not answered; a gateway too old for it answers with status 3."


def all_operations(prefix: str) -> dict[str, dict[str, Any]]:
    """Describe everything that the service does, below the topic prefix of the installation."""
    return dict(_operations(prefix))


def _operations(prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in Kind:
        yield f"receive-{kind}", _operation("receive", channels.report(kind, prefix), _ACKNOWLEDGED)
    for operation in Operation:
        reply = channels.response(operation, prefix) if operation.is_answered else None
        for name, channel, about in (
            (f"send-{operation}", channels.request(operation, prefix), _ANSWERED),
            (f"send-{operation}-to-all", channels.request_to_all(operation, prefix), _BY_EACH),
        ):
            yield name, _operation("send", channel, about if reply else _NOT_ANSWERED, reply)
    question, answer = channels.question(), channels.answer()
    yield f"receive-{question.name}", _operation("receive", question, "The answer has the same `id`.", answer)


def _operation(
    action: Literal["send", "receive"], channel: Channel, about: str, reply: Channel | None = None
) -> dict[str, Any]:
    return {
        "action": action,
        "channel": _reference(channel),
        "title": f"{action} {channel.name}".replace("-", " ").capitalize(),
        "summary": channel.message.described()["summary"],
        "description": about,
        "tags": [{"name": channel.message.tag}],
        "bindings": _BINDINGS,
        "messages": [_message(channel)],
        **({"reply": {"channel": _reference(reply), "messages": [_message(reply)]}} if reply else {}),
    }


def _reference(channel: Channel) -> dict[str, str]:
    return {"$ref": f"#/channels/{channel.name}"}


def _message(channel: Channel) -> dict[str, str]:
    return {"$ref": f"#/channels/{channel.name}/messages/{channel.message.name}"}
