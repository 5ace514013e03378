"""Shared by the commands `read`, `write`, `ack` and `apiversion`: options, sending and output.

Requests go through the service to which the user is logged in, or with `--broker` directly over an MQTT
broker.
"""

from __future__ import annotations

import asyncio
import os
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec
from click.core import ParameterSource

from meshfleet.cli.arguments import DEVICE
from meshfleet.cli.completers import complete_gateways
from meshfleet.cli.options import PREFIX, TEXT, NumberParamType, TextParamType, parse_text, tls_ca_option
from meshfleet.cli.output import print_json
from meshfleet.cli.service_access import call_service
from meshfleet.cli.terminal import to_printable
from meshfleet.cli.value_format import format_status
from meshfleet.client import Mesh
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol import payload
from meshfleet.protocol.codes import AccessType, Origin, Priority
from meshfleet.protocol.payload import Payload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from meshfleet.client import Fleet
    from meshfleet.protocol.ids import Mac


# --- Output of responses ---

_ORIGIN_TEXTS: Final = {
    Origin.CONNECTED: "the device itself",
    Origin.UNCONNECTED: "the device through extender {extender}",
    Origin.EXTENDER: "extender {extender} instead of the device",
    Origin.GATEWAY: "the gateway instead of the device",
}

_CHOICE_TEXTS: Final = {
    "asked": "as requested",
    "strongest": "which receives the device best",
    "last-heard": "which sent the last report of the device",
    "next-best": "because the last attempt through a better gateway failed",
}


def to_response_fields(response: Any, gateway: Mac | None) -> dict[str, Any]:
    """Convert a response, from the service or over MQTT from a gateway, to fields with JSON names."""
    if isinstance(response, Payload):
        return {**payload.to_json_object(response), "gateway": gateway}
    found: dict[str, Any] = msgspec.to_builtins(response)
    return found


def print_response(response: dict[str, Any], device: Mac, sentence: str, *, as_json: bool) -> None:
    """Print `sentence`, which says the result of a request to a device, and which node responded.

    Raise `ClickException` (exit code 1) if the status of the response is not 0.
    """
    if as_json:
        print_json(response)
    if response["status"]:
        raise click.ClickException(to_printable(_format_refusal(response, device)))
    if not as_json:
        click.echo(to_printable(sentence))
        click.echo(to_printable(f"{_format_responder(response, device)}{_format_gateway_choice(response)}"))


def _format_refusal(response: dict[str, Any], device: Mac) -> str:
    message = response.get("errorMessage")
    reason = format_status(response["status"])
    return (
        f"{reason}: {message}; {_format_responder(response, device)}"
        if message
        else f"{reason}; {_format_responder(response, device)}"
    )


def _format_responder(response: dict[str, Any], device: Mac) -> str:
    millis = response.get("responseTime")
    duration = "" if millis is None else f" in {millis:g} ms"
    if device == response["gateway"]:
        return f"answered by the gateway itself{duration}"
    return f"answered by {_format_origin(response)}{duration}, through gateway {response['gateway']}"


def _format_origin(response: dict[str, Any]) -> str:
    """Describe the node that sent a response. Gateways before version 2.0.0 do not report this node."""
    text = _ORIGIN_TEXTS.get(response.get("origin", -1), "the device, or the gateway instead of it")
    return text.format(extender=response.get("extenderId", "?"))


def _format_gateway_choice(response: dict[str, Any]) -> str:
    """Return why the service chose this gateway for the request; empty if it did not choose."""
    choice = response.get("choice")
    if choice is None or choice["reason"] not in _CHOICE_TEXTS:
        return ""
    rssi = next(
        (each["rssi"] for each in choice["candidates"] if each["gateway"] == response["gateway"]), None
    )
    signal = "" if rssi is None or choice["reason"] != "strongest" else f" ({rssi:g} dBm)"
    return f", {_CHOICE_TEXTS[choice['reason']]}{signal}"


_PRIORITIES: Final = [each.name.lower() for each in Priority]
_MAX_TIMEOUT: Final = 120
"""Maximum timeout of a request in seconds (inclusive)."""
_MIN_TIMEOUT: Final = 0.1
"""Minimum timeout of a request in seconds (inclusive)."""
_DEFAULT_TIMEOUT: Final = 15.0
"""Default timeout of a request in seconds."""


def _check_broker_url(text: str) -> str:
    BrokerAddress.parse(text)
    return text


_BROKER_URL: Final = TextParamType("url", _check_broker_url)


class RequestRoute(NamedTuple):
    """Route of a request: directly over an MQTT broker, or through the service if `broker` is None."""

    gateway: Mac | None
    broker: str | None
    """URL of the MQTT broker, which may contain a password; None to use the service."""
    topic_prefix: str
    tls_ca: Path | None

    def require_gateway(self) -> Mac:
        """Return the gateway. Raise `UsageError` if it is None: only a service can choose a gateway."""
        if self.gateway is None:
            raise click.UsageError("--broker needs --gateway, the gateway of the device.")
        return self.gateway


def _is_on_command_line(parameter: str) -> bool:
    """Return whether an option is on the command line, not in an environment variable.

    An environment variable may be meant for other commands.
    """
    source = click.get_current_context().get_parameter_source(parameter)
    return source is ParameterSource.COMMANDLINE


def broker_options(command: Callable[..., None]) -> Any:
    """Add `--broker`, `--topic-prefix` and `--tls-ca` to a command, which receives them as argument `route`.

    A parameter `gateway` of the command becomes part of the route. The command raises `UsageError` if
    `--topic-prefix` or `--tls-ca` is given without `--broker`.
    """

    @wraps(command)
    def run_with_route(
        *,
        gateway: Mac | None = None,
        broker: str | None,
        topic_prefix: str,
        tls_ca: Path | None,
        **others: Any,
    ) -> None:
        if broker is None:
            for name, option in (("topic_prefix", "--topic-prefix"), ("tls_ca", "--tls-ca")):
                if _is_on_command_line(name):
                    raise click.UsageError(f"{option} needs --broker.")
        command(route=RequestRoute(gateway, broker, topic_prefix, tls_ca), **others)

    broker = click.option(
        "--broker",
        type=_BROKER_URL,
        envvar="MESHFLEET_MESH",  # not MESHFLEET_BROKER, which belongs to a service on this machine
        show_envvar=True,
        help="URL of an MQTT broker to use instead of a service: mqtt://[user:password@]host[:port];"
        " also mqtts://, ws:// and wss://.",
    )
    prefix = click.option(
        "--topic-prefix",
        type=PREFIX,
        default="",
        help="With --broker: prefix in front of mt/ in every MQTT topic.",
    )
    return broker(prefix(tls_ca_option(run_with_route)))


def route_options(command: Any) -> Any:
    """Add `--gateway` and the options of `broker_options` to a command, which receives them as `route`."""
    return click.option(
        "--gateway",
        type=DEVICE,
        shell_complete=complete_gateways,
        help="Gateway through which to send the request; needed with --broker, else chosen by the service.",
    )(broker_options(command))


priority_option = click.option(
    "--priority", type=click.Choice(_PRIORITIES), help="Priority of the request in the mesh."
)
timeout_option = click.option(
    "--timeout",
    type=NumberParamType(_MIN_TIMEOUT, _MAX_TIMEOUT),
    default=_DEFAULT_TIMEOUT,
    show_default=True,
    help="Seconds to wait for the response to the request.",
)


def request_options(command: Any) -> Any:
    """Add to a command the options that `build_request_parameters` converts to request parameters."""
    for option in (
        click.option(
            "--ask-public-key",
            is_flag=True,
            help="Prompt for the public key, instead of reading the variable MESHFLEET_PUBLIC_KEY.",
        ),
        click.option(
            "--ask-key",
            is_flag=True,
            help="Prompt for the network key, instead of reading the variable MESHFLEET_KEY.",
        ),
        click.option(
            "--access-type",
            type=click.Choice([each.value for each in AccessType]),
            help="How to reach a device outside the secured mesh.",
        ),
        click.option(
            "--extender",
            type=DEVICE,
            help="MAC of the extender through which to reach an unconnected device.",
        ),
        timeout_option,
        priority_option,
    ):
        command = option(command)
    return command


def build_request_parameters(  # noqa: PLR0913 # one for each option
    *,
    priority: str | None,
    timeout: float,
    extender: Mac | None,
    access_type: str | None,
    ask_key: bool,
    ask_public_key: bool,
) -> dict[str, Any]:
    """Convert option values to request parameters of the SDK. Read keys from the environment or a prompt."""
    return {
        "priority": parse_priority(priority),
        "timeout": timeout,
        "extender_id": extender,
        "access_type": AccessType(access_type) if access_type else None,
        "key": _read_secret("MESHFLEET_KEY", "Network key", ask=ask_key),
        "public_key": _read_secret("MESHFLEET_PUBLIC_KEY", "Public key", ask=ask_public_key),
    }


def parse_priority(name: str | None) -> Priority | None:
    """Return the priority with this name; None if the name is None."""
    return Priority[name.upper()] if name else None


def _read_secret(variable: str, question: str, *, ask: bool) -> str | None:
    """Return a key from a prompt if `ask` is set, else from an environment variable; None if empty."""
    if ask:
        typed: str = click.prompt(question, type=TEXT, hide_input=True, err=True)
        return typed
    return parse_text(os.environ.get(variable, ""), variable) or None


def send_request(
    route: RequestRoute,
    by_service: Callable[[Fleet], Coroutine[Any, Any, Any]],
    by_broker: Callable[[Mesh, Mac], Coroutine[Any, Any, Any]],
) -> Any:
    """Send a request through the service, or over the broker of the route. Return the response.

    The request is sent by calling `by_service` or `by_broker`.
    """
    if route.broker is None:
        return call_service(by_service)
    return asyncio.run(_send_to_broker(route, route.require_gateway(), by_broker))


async def _send_to_broker(
    route: RequestRoute, gateway: Mac, request: Callable[[Mesh, Mac], Coroutine[Any, Any, Any]]
) -> Any:
    async with open_mesh(route) as mesh:
        return await request(mesh, gateway)


def open_mesh(route: RequestRoute) -> Mesh:
    """Create an SDK client for the gateways that are connected to the route's broker."""
    return Mesh(route.broker or "", prefix=route.topic_prefix, tls_ca=route.tls_ca)
