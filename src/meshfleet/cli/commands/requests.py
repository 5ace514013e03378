"""`meshfleet read`, `write`, `ack` and `apiversion` send requests to devices; `requests` lists requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from msgspec import UNSET

from meshfleet.cli.arguments import TIME, device_argument, gateway_argument, identifier_argument
from meshfleet.cli.device_requests import (
    RequestRoute,
    broker_options,
    build_request_parameters,
    parse_priority,
    print_response,
    priority_option,
    request_options,
    route_options,
    send_request,
    timeout_option,
    to_response_fields,
)
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import (
    Column,
    flatten_fields,
    json_option,
    print_fields,
    print_json,
    print_list,
    print_result,
)
from meshfleet.cli.service_access import call_service
from meshfleet.cli.value_format import format_ext, format_status, format_value
from meshfleet.errors.protocol import MalformedHex
from meshfleet.protocol.codes import AckType
from meshfleet.protocol.hex import parse_hex
from meshfleet.protocol.ids import is_identifier

if TYPE_CHECKING:
    from datetime import datetime

    from meshfleet.protocol.fields import Json
    from meshfleet.protocol.ids import Mac
    from meshfleet.rest.requests import RequestRecord


# --- meshfleet ack ---


@click.command()
@device_argument
@identifier_argument
@click.option(
    "--time",
    type=TIME,
    required=True,
    help="Time of the sample to acknowledge, such as 2026-11-15T10:00:00Z.",
)
@click.option(
    "--type",
    "ack_type",
    type=click.IntRange(0, 2),
    default=0,
    show_default=True,
    help="0: acknowledge only this sample; 1: also request older samples;"
    " 2: erase all samples of IDENTIFIER on the device.",
)
@click.option(
    "--yes", is_flag=True, help="With --type 2: erase samples on the device without asking for confirmation."
)
@route_options
@priority_option
@json_option
def ack(  # noqa: PLR0913 # one for each option
    device: Mac,
    identifier: str,
    *,
    time: datetime,
    ack_type: int,
    yes: bool,
    route: RequestRoute,
    priority: str | None,
    as_json: bool,
) -> None:
    """Acknowledge a sample, so that the device can delete the sample. An ack gets no response."""
    if ack_type == AckType.ERASE_ALL and not yes:
        question = f"Erase all samples of {identifier} that {device} holds?"
        click.confirm(question, abort=True, err=True)
    parameters: Any = {"time": time, "type": AckType(ack_type), "priority": parse_priority(priority)}
    sent = send_request(
        route,
        lambda fleet: fleet.requests.ack(device, identifier, gateway=route.gateway, **parameters),
        lambda mesh, via: mesh.ack(via, device, identifier, **parameters),
    )
    result = {"gateway": route.gateway, "state": "SENT"} if sent is None else sent
    print_result(result, f"Sent the ack of {identifier} to {device}.", as_json=as_json)


# --- meshfleet apiversion ---


@click.command()
@gateway_argument
@broker_options
@priority_option
@timeout_option
@json_option
def apiversion(*, route: RequestRoute, priority: str | None, timeout: float, as_json: bool) -> None:
    """Read the API version of a gateway."""
    gateway = route.require_gateway()
    parameters: Any = {"priority": parse_priority(priority), "timeout": timeout}
    found = send_request(
        route,
        lambda fleet: fleet.requests.apiversion(gateway, **parameters),
        lambda mesh, via: mesh.apiversion(via, **parameters),
    )
    fields = to_response_fields(found, gateway)
    print_response(fields, gateway, f"{gateway} has API version {fields.get('version')}", as_json=as_json)


# --- meshfleet read ---


@click.command()
@device_argument
@identifier_argument
@route_options
@request_options
@json_option
def read(device: Mac, identifier: str, *, route: RequestRoute, as_json: bool, **options: Any) -> None:
    """Read a property of a device: the decoded value for a name, the raw hex value for a hex IDENTIFIER."""
    parameters = build_request_parameters(**options)
    found = send_request(
        route,
        lambda fleet: fleet.requests.read(device, identifier, gateway=route.gateway, **parameters),
        lambda mesh, via: mesh.read(via, device, identifier, **parameters),
    )
    fields = to_response_fields(found, route.gateway)
    text = format_ext(fields.get("ext"))
    subject = f"{identifier} = {format_value(identifier, fields.get('value'))}{text}"
    print_response(fields, device, subject, as_json=as_json)


# --- meshfleet write ---

_HAS_SEPARATOR: Final = "meshfleet.write.all-values"


class _WriteCommand(click.Command):
    """Command whose VALUE may be a negative number. Another VALUE with a leading hyphen must follow `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Record in `ctx.meta` whether the arguments contain `--`, because click removes `--`."""
        ctx.meta[_HAS_SEPARATOR] = "--" in args
        return super().parse_args(ctx, args)


@click.command(cls=_WriteCommand, context_settings={"ignore_unknown_options": True})
@device_argument
@identifier_argument
@click.argument("value", type=TEXT, required=False)
@route_options
@request_options
@json_option
def write(
    device: Mac, identifier: str, value: str | None, *, route: RequestRoute, as_json: bool, **options: Any
) -> None:
    """Write VALUE to a property of a device. Without VALUE, write NULL.

    If IDENTIFIER is a name, VALUE is JSON, or a string if it is not valid JSON. If IDENTIFIER is a hex id,
    VALUE is in hex.
    """
    parameters, written = build_request_parameters(**options), _parse_value(identifier, value)
    found = send_request(
        route,
        lambda fleet: fleet.requests.write(device, identifier, written, gateway=route.gateway, **parameters),
        lambda mesh, via: mesh.write(via, device, identifier, written, **parameters),
    )
    text = "NULL" if value is None else value
    fields = to_response_fields(found, route.gateway)
    print_response(fields, device, f"{identifier} = {text} is written", as_json=as_json)


def _parse_value(identifier: str, text: str | None) -> Json:
    if text is None:
        return None
    if is_identifier(identifier):
        return _parse_hex(text)
    try:
        value: Json = msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        value = text
    if value is text and text.startswith("-") and not click.get_current_context().meta[_HAS_SEPARATOR]:
        raise click.NoSuchOption(text)
    return value


def _parse_hex(text: str) -> str:
    try:
        parse_hex(text)
    except MalformedHex as exc:
        raise click.BadParameter(exc.reason, param_hint="'[VALUE]'") from exc
    return text.lower()


_DEFAULT_LIMIT: Final = 100


def _format_outcome(record: RequestRecord) -> str:
    """Format the value, version or error of a finished request; empty while the request is pending."""
    response = record.response
    if response is None:
        return record.problem.code if record.problem else ""
    if response.status:
        return format_status(response.status)
    identifier = record.request.identifier
    if response.value is UNSET or identifier is UNSET:
        return "ok" if response.version is UNSET else response.version
    return format_value(identifier, response.value)


def _format_duration(record: RequestRecord) -> str:
    took = record.response.response_time if record.response else UNSET
    return "" if took is UNSET else f"{took:g} ms"


_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("at", lambda each: each.requested_at, no_wrap=True),
    Column("by", lambda each: each.by),
    Column("operation", lambda each: each.request.operation),
    Column("identifier", lambda each: each.request.identifier or ""),
    Column("state", lambda each: each.state),
    Column("response", _format_outcome),
    Column("took", _format_duration),
    Column("gateway", lambda each: each.gateway, no_wrap=True),
)


class _RequestsGroup(click.Group):
    """Command group in which `requests DEVICE` is short for `requests list DEVICE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `list` in front of the arguments if the first argument is not a subcommand."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RequestsGroup, subcommand_metavar="DEVICE | show ID")
def requests() -> None:
    """List the requests sent to a DEVICE, or show the request with this ID."""


@requests.command("list")
@device_argument
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=_DEFAULT_LIMIT,
    show_default=True,
    help="Maximum number of requests to list.",
)
@json_option
def list_requests(device: Mac, *, limit: int, as_json: bool) -> None:
    """List the requests sent to a device, newest first."""
    call_service(
        lambda fleet: print_list(fleet.requests.list(device), _COLUMNS, as_json=as_json, limit=limit)
    )


@requests.command()
@click.argument("request_id", metavar="ID", type=TEXT)
@json_option
def show(request_id: str, *, as_json: bool) -> None:
    """Show a request and its response."""
    found = call_service(lambda fleet: fleet.requests.show(request_id))
    if as_json:
        print_json(found)
    else:
        print_fields(flatten_fields(found))
