"""What `read`, `write`, `ack` and `apiversion` have in common: whom they ask, and how.

They go through the service where somebody is logged in, or with `--broker` straight to a gateway.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.core import ParameterSource

from meshfleet.cli.options import PREFIX, TEXT, Number, Text, authorities_option, read_text
from meshfleet.cli.remote.arguments import DEVICE
from meshfleet.cli.remote.completing import complete_gateways
from meshfleet.cli.remote.reaching import talk
from meshfleet.client import Mesh
from meshfleet.link import Address
from meshfleet.wire.codes import AccessType, Priority

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from meshfleet.client import Fleet
    from meshfleet.wire.ids import Mac

_PRIORITIES: Final = [each.name.lower() for each in Priority]
_LONGEST: Final = 120
_SHORTEST: Final = 0.1
_USUAL: Final = 15.0
"""Seconds."""


def _broker(text: str) -> str:
    Address.parse(text)
    return text


_URL: Final = Text("url", _broker)


class Way(NamedTuple):
    """The way to a gateway: a broker, or none and so the service."""

    gateway: Mac | None
    broker: str | None
    """With a password inside, perhaps."""
    topic_prefix: str
    tls_ca: Path | None

    @classmethod
    def chosen(cls, gateway: Mac | None, broker: str | None, topic_prefix: str, tls_ca: Path | None) -> Way:
        """The one that the options lead to; some lead nowhere without a broker."""
        if broker is None:
            for name, option in (("topic_prefix", "--topic-prefix"), ("tls_ca", "--tls-ca")):
                if _is_typed(name):
                    raise click.UsageError(f"{option} goes with --broker.")
        return cls(gateway, broker, topic_prefix, tls_ca)

    def needed_gateway(self) -> Mac:
        """At a broker nobody knows who hears a device."""
        if self.gateway is None:
            raise click.UsageError("With --broker, say with --gateway through which gateway it goes.")
        return self.gateway


def _is_typed(parameter: str) -> bool:
    """Whether it stands on the command line: what the environment says may be for others."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is ParameterSource.COMMANDLINE


def broker_options(command: Any) -> Any:
    """Give a command all that leads to a broker; it gets them under the names of `Way`."""
    broker = click.option(
        "--broker",
        type=_URL,
        envvar="MESHFLEET_MESH",  # not MESHFLEET_BROKER: that is the one of a service on this machine
        show_envvar=True,
        help="Without any service: mqtt://[user:password@]host[:port]; also mqtts://, ws:// and wss://.",
    )
    prefix = click.option(
        "--topic-prefix", type=PREFIX, default="", help="With --broker: what is before mt/."
    )
    return broker(prefix(authorities_option(command)))


def way_options(command: Any) -> Any:
    """Give a command also the gateway through which it goes."""
    return click.option(
        "--gateway", type=DEVICE, shell_complete=complete_gateways, help="Through this gateway."
    )(broker_options(command))


priority_option = click.option(
    "--priority", type=click.Choice(_PRIORITIES), help="How urgent it is inside the mesh."
)
timeout_option = click.option(
    "--timeout",
    type=Number(_SHORTEST, _LONGEST),
    default=_USUAL,
    show_default=True,
    help="Seconds to wait for the answer.",
)


def access_options(command: Any) -> Any:
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


def access(  # noqa: PLR0913 # one for each option
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
        "priority": read_priority(priority),
        "timeout": timeout,
        "extender_id": extender,
        "access_type": AccessType(access_type) if access_type else None,
        "key": _secret("MESHFLEET_KEY", "Network key", ask=ask_key),
        "public_key": _secret("MESHFLEET_PUBLIC_KEY", "Public key", ask=ask_public_key),
    }


def read_priority(word: str | None) -> Priority | None:
    """A priority by its word."""
    return Priority[word.upper()] if word else None


def _secret(variable: str, question: str, *, ask: bool) -> str | None:
    if ask:
        typed: str = click.prompt(question, type=TEXT, hide_input=True, err=True)
        return typed
    return read_text(os.environ.get(variable, ""), variable) or None


def send(
    way: Way,
    by_service: Callable[[Fleet], Coroutine[Any, Any, Any]],
    by_broker: Callable[[Mesh, Mac], Coroutine[Any, Any, Any]],
) -> Any:
    """Ask, the way that is wanted; gives what comes back."""
    if way.broker is None:
        return talk(by_service)
    return asyncio.run(_send(way, way.needed_gateway(), by_broker))


async def _send(way: Way, gateway: Mac, ask: Callable[[Mesh, Mac], Coroutine[Any, Any, Any]]) -> Any:
    async with open_mesh(way) as mesh:
        return await ask(mesh, gateway)


def open_mesh(way: Way) -> Mesh:
    """The gateways at a broker."""
    return Mesh(way.broker or "", prefix=way.topic_prefix, tls_ca=way.tls_ca)
