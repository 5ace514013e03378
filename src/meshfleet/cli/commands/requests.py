"""`meshfleet requests`: what was asked of devices, and what came of it."""

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
    from meshfleet.rest import RequestRecord


# `meshfleet ack`: tell a device that a sample arrived.


@click.command()
@device_argument
@identifier_argument
@click.option("--time", type=TIME, required=True, help="Of the sample.")
@click.option(
    "--type",
    "number",
    type=click.IntRange(0, 2),
    default=0,
    show_default=True,
    help="0: this one; 1: and send what is older; 2: erase all that the device holds.",
)
@click.option("--yes", is_flag=True, help="Erase without asking back.")
@route_options
@priority_option
@json_option
def ack(  # noqa: PLR0913 # one for each option
    device: Mac,
    identifier: str,
    *,
    time: datetime,
    number: int,
    yes: bool,
    gateway: Mac | None,
    broker: Any,
    topic_prefix: str,
    tls_ca: Any,
    priority: str | None,
    as_json: bool,
) -> None:
    """Acknowledge a sample of a device, so that it need not keep it; no answer comes to that."""
    if number == AckType.ERASE_ALL and not yes:
        question = f"Erase all samples of {identifier} that {device} holds?"
        click.confirm(question, abort=True, err=True)
    how: Any = {"time": time, "type": AckType(number), "priority": parse_priority(priority)}
    sent = send_request(
        RequestRoute.from_options(gateway, broker, topic_prefix, tls_ca),
        lambda fleet: fleet.requests.ack(device, identifier, gateway=gateway, **how),
        lambda mesh, through: mesh.ack(through, device, identifier, **how),
    )
    told = {"gateway": gateway, "state": "SENT"} if sent is None else sent
    print_result(told, f"the ack of {identifier} is on its way to {device}", as_json=as_json)


# `meshfleet apiversion`: which version of the interface a gateway speaks.


@click.command()
@gateway_argument
@broker_options
@priority_option
@timeout_option
@json_option
def apiversion(  # noqa: PLR0913 # one for each option
    gateway: Mac,
    *,
    broker: Any,
    topic_prefix: str,
    tls_ca: Any,
    priority: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Ask a gateway which version of the interface it speaks."""
    how: Any = {"priority": parse_priority(priority), "timeout": timeout}
    found = send_request(
        RequestRoute.from_options(gateway, broker, topic_prefix, tls_ca),
        lambda fleet: fleet.requests.apiversion(gateway, **how),
        lambda mesh, through: mesh.apiversion(through, **how),
    )
    answer = to_response_fields(found, gateway)
    print_response(answer, gateway, f"{gateway} speaks version {answer.get('version')}", as_json=as_json)


# `meshfleet read`: a property of a device.


@click.command()
@device_argument
@identifier_argument
@route_options
@request_options
@json_option
def read(  # noqa: PLR0913 # one for each option
    device: Mac,
    identifier: str,
    *,
    gateway: Mac | None,
    broker: Any,
    topic_prefix: str,
    tls_ca: Any,
    as_json: bool,
    **given: Any,
) -> None:
    """Read the property IDENTIFIER of a device: decoded by its name, raw by its id in hex."""
    way, how = (
        RequestRoute.from_options(gateway, broker, topic_prefix, tls_ca),
        build_request_parameters(**given),
    )
    found = send_request(
        way,
        lambda fleet: fleet.requests.read(device, identifier, gateway=gateway, **how),
        lambda mesh, through: mesh.read(through, device, identifier, **how),
    )
    answer = to_response_fields(found, gateway)
    text = format_ext(answer.get("ext"))
    subject = f"{identifier} = {format_value(identifier, answer.get('value'))}{text}"
    print_response(answer, device, subject, as_json=as_json)


# `meshfleet write`: a property of a device.

_HAS_SEPARATOR: Final = "meshfleet.write.all-values"


class _WriteCommand(click.Command):
    """A negative number is a value, although it begins like an option; a text only behind `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remember whether there is a `--`, of which nothing is left."""
        ctx.meta[_HAS_SEPARATOR] = "--" in args
        return super().parse_args(ctx, args)


@click.command(cls=_WriteCommand, context_settings={"ignore_unknown_options": True})
@device_argument
@identifier_argument
@click.argument("value", type=TEXT, required=False)
@route_options
@request_options
@json_option
def write(  # noqa: PLR0913 # one for each option
    device: Mac,
    identifier: str,
    value: str | None,
    *,
    gateway: Mac | None,
    broker: Any,
    topic_prefix: str,
    tls_ca: Any,
    as_json: bool,
    **given: Any,
) -> None:
    """Write VALUE to the property IDENTIFIER of a device, or NULL without a VALUE.

    By its name IDENTIFIER takes JSON, and what is none is taken as text; by its id in hex it takes hex.
    """
    way, how, written = (
        RequestRoute.from_options(gateway, broker, topic_prefix, tls_ca),
        build_request_parameters(**given),
        _parse_value(identifier, value),
    )
    found = send_request(
        way,
        lambda fleet: fleet.requests.write(device, identifier, written, gateway=gateway, **how),
        lambda mesh, through: mesh.write(through, device, identifier, written, **how),
    )
    text = "NULL" if value is None else value
    print_response(
        to_response_fields(found, gateway), device, f"{identifier} = {text} is written", as_json=as_json
    )


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
    """What came of a request, in a few words."""
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
    Column("answer", _format_outcome),
    Column("took", _format_duration),
    Column("gateway", lambda each: each.gateway, no_wrap=True),
)


class _RequestsGroup(click.Group):
    """`requests DEVICE` is short for `requests list DEVICE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put in what may be left out."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RequestsGroup, subcommand_metavar="DEVICE | show ID")
def requests() -> None:
    """Tell which requests were sent to a DEVICE, or all about one of them."""


@requests.command("list")
@device_argument
@click.option("--limit", type=click.IntRange(1), default=_DEFAULT_LIMIT, show_default=True)
@json_option
def list_requests(device: Mac, *, limit: int, as_json: bool) -> None:
    """List the requests to a device, the newest first."""
    call_service(
        lambda fleet: print_list(fleet.requests.list(device), _COLUMNS, as_json=as_json, limit=limit)
    )


@requests.command()
@click.argument("request_id", metavar="ID", type=TEXT)
@json_option
def show(request_id: str, *, as_json: bool) -> None:
    """Tell all about a request, and its answer."""
    found = call_service(lambda fleet: fleet.requests.show(request_id))
    if as_json:
        print_json(found)
    else:
        print_fields(flatten_fields(found))
