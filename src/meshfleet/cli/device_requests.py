"""What `read`, `write`, `ack` and `apiversion` have in common: whom they ask, and how.

They go through the service where somebody is logged in, or with `--broker` straight to a gateway.
"""

from __future__ import annotations

import asyncio
import os
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


# Answers to requests, as people and programs read them.

_ORIGIN_TEXTS: Final = {
    Origin.CONNECTED: "the device itself",
    Origin.UNCONNECTED: "the device through extender {extender}",
    Origin.EXTENDER: "extender {extender} instead of the device",
    Origin.GATEWAY: "the gateway instead of the device",
}

_CHOICE_TEXTS: Final = {
    "asked": "which was asked for",
    "strongest": "which hears the device best",
    "last-heard": "which brought the last report of the device",
    "next-best": "because the last try through a better gateway failed",
}


def to_response_fields(response: Any, gateway: Mac | None) -> dict[str, Any]:
    """An answer of the service, or of the gateway that we asked ourselves, under the same names."""
    if isinstance(response, Payload):
        return {**payload.to_json_object(response), "gateway": gateway}
    found: dict[str, Any] = msgspec.to_builtins(response)
    return found


def print_response(response: dict[str, Any], device: Mac, subject: str, *, as_json: bool) -> None:
    """Print an answer; one that says no ends the command with exit code 1."""
    if as_json:
        print_json(response)
    if response["status"]:
        raise click.ClickException(to_printable(_format_refusal(response, device)))
    if not as_json:
        click.echo(to_printable(subject))
        click.echo(to_printable(f"{_format_responder(response, device)}{_format_gateway_choice(response)}"))


def _format_refusal(response: dict[str, Any], device: Mac) -> str:
    words = response.get("errorMessage")
    reason = format_status(response["status"])
    return (
        f"{reason}: {words}; {_format_responder(response, device)}"
        if words
        else f"{reason}; {_format_responder(response, device)}"
    )


def _format_responder(response: dict[str, Any], device: Mac) -> str:
    took = response.get("responseTime")
    time = "" if took is None else f" in {took:g} ms"
    if device == response["gateway"]:
        return f"answered by the gateway itself{time}"
    return f"answered by {_format_origin(response)}{time}, through gateway {response['gateway']}"


def _format_origin(response: dict[str, Any]) -> str:
    """Gateways before 2.0.0 do not tell who answered."""
    words = _ORIGIN_TEXTS.get(response.get("origin", -1), "the device, or the gateway instead of it")
    return words.format(extender=response.get("extenderId", "?"))


def _format_gateway_choice(response: dict[str, Any]) -> str:
    """Why it went through this gateway, where somebody had the choice."""
    choice = response.get("choice")
    if choice is None or choice["reason"] not in _CHOICE_TEXTS:
        return ""
    rssi = next(
        (each["rssi"] for each in choice["candidates"] if each["gateway"] == response["gateway"]), None
    )
    heard = "" if rssi is None or choice["reason"] != "strongest" else f" ({rssi:g} dBm)"
    return f", {_CHOICE_TEXTS[choice['reason']]}{heard}"


_PRIORITIES: Final = [each.name.lower() for each in Priority]
_MAX_TIMEOUT: Final = 120
_MIN_TIMEOUT: Final = 0.1
_DEFAULT_TIMEOUT: Final = 15.0
"""Seconds."""


def _check_broker_url(text: str) -> str:
    BrokerAddress.parse(text)
    return text


_BROKER_URL: Final = TextParamType("url", _check_broker_url)


class RequestRoute(NamedTuple):
    """The way to a gateway: a broker, or none and so the service."""

    gateway: Mac | None
    broker: str | None
    """With a password inside, perhaps."""
    topic_prefix: str
    tls_ca: Path | None

    @classmethod
    def from_options(
        cls, gateway: Mac | None, broker: str | None, topic_prefix: str, tls_ca: Path | None
    ) -> RequestRoute:
        """The one that the options lead to; some lead nowhere without a broker."""
        if broker is None:
            for name, option in (("topic_prefix", "--topic-prefix"), ("tls_ca", "--tls-ca")):
                if _is_on_command_line(name):
                    raise click.UsageError(f"{option} goes with --broker.")
        return cls(gateway, broker, topic_prefix, tls_ca)

    def require_gateway(self) -> Mac:
        """At a broker nobody knows who hears a device."""
        if self.gateway is None:
            raise click.UsageError("With --broker, say with --gateway through which gateway it goes.")
        return self.gateway


def _is_on_command_line(parameter: str) -> bool:
    """Whether it stands on the command line: what the environment says may be for others."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is ParameterSource.COMMANDLINE


def broker_options(command: Any) -> Any:
    """Give a command all that leads to a broker; it gets them under the names of `Way`."""
    broker = click.option(
        "--broker",
        type=_BROKER_URL,
        envvar="MESHFLEET_MESH",  # not MESHFLEET_BROKER: that is the one of a service on this machine
        show_envvar=True,
        help="Without any service: mqtt://[user:password@]host[:port]; also mqtts://, ws:// and wss://.",
    )
    prefix = click.option(
        "--topic-prefix", type=PREFIX, default="", help="With --broker: what is before mt/."
    )
    return broker(prefix(tls_ca_option(command)))


def route_options(command: Any) -> Any:
    """Give a command also the gateway through which it goes."""
    return click.option(
        "--gateway", type=DEVICE, shell_complete=complete_gateways, help="Through this gateway."
    )(broker_options(command))


priority_option = click.option(
    "--priority", type=click.Choice(_PRIORITIES), help="How urgent it is inside the mesh."
)
timeout_option = click.option(
    "--timeout",
    type=NumberParamType(_MIN_TIMEOUT, _MAX_TIMEOUT),
    default=_DEFAULT_TIMEOUT,
    show_default=True,
    help="Seconds to wait for the answer.",
)


def request_options(command: Any) -> Any:
    """Give a command all that says how a device is reached and opened; see `access`."""
    for option in (
        click.option("--ask-public-key", is_flag=True, help="Ask for it; else it is MESHFLEET_PUBLIC_KEY."),
        click.option("--ask-key", is_flag=True, help="Ask for the network key; else it is MESHFLEET_KEY."),
        click.option("--access-type", type=click.Choice([each.value for each in AccessType])),
        click.option("--extender", type=DEVICE, help="Reach an unconnected device through this extender."),
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
    """What the SDK is told of it. Keys come from where nobody else sees them."""
    return {
        "priority": parse_priority(priority),
        "timeout": timeout,
        "extender_id": extender,
        "access_type": AccessType(access_type) if access_type else None,
        "key": _read_secret("MESHFLEET_KEY", "Network key", ask=ask_key),
        "public_key": _read_secret("MESHFLEET_PUBLIC_KEY", "Public key", ask=ask_public_key),
    }


def parse_priority(word: str | None) -> Priority | None:
    """A priority by its word."""
    return Priority[word.upper()] if word else None


def _read_secret(variable: str, question: str, *, ask: bool) -> str | None:
    if ask:
        typed: str = click.prompt(question, type=TEXT, hide_input=True, err=True)
        return typed
    return parse_text(os.environ.get(variable, ""), variable) or None


def send_request(
    route: RequestRoute,
    by_service: Callable[[Fleet], Coroutine[Any, Any, Any]],
    by_broker: Callable[[Mesh, Mac], Coroutine[Any, Any, Any]],
) -> Any:
    """Ask, the way that is wanted; gives what comes back."""
    if route.broker is None:
        return call_service(by_service)
    return asyncio.run(_send_to_broker(route, route.require_gateway(), by_broker))


async def _send_to_broker(
    route: RequestRoute, gateway: Mac, request: Callable[[Mesh, Mac], Coroutine[Any, Any, Any]]
) -> Any:
    async with open_mesh(route) as mesh:
        return await request(mesh, gateway)


def open_mesh(route: RequestRoute) -> Mesh:
    """The gateways at a broker."""
    return Mesh(route.broker or "", prefix=route.topic_prefix, tls_ca=route.tls_ca)
