"""Answers to requests, as people and programs read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from meshfleet.cli.remote.printing import print_json
from meshfleet.cli.remote.values import status_text
from meshfleet.cli.terminal import printable
from meshfleet.wire import payload
from meshfleet.wire.codes import Origin
from meshfleet.wire.payload import Payload

if TYPE_CHECKING:
    from meshfleet.wire.ids import Mac

_ORIGINS: Final = {
    Origin.CONNECTED: "the device itself",
    Origin.UNCONNECTED: "the device through extender {extender}",
    Origin.EXTENDER: "extender {extender} instead of the device",
    Origin.GATEWAY: "the gateway instead of the device",
}

_REASONS: Final = {
    "asked": "which was asked for",
    "strongest": "which hears the device best",
    "last-heard": "which brought the last report of the device",
    "next-best": "because the last try through a better gateway failed",
}


def spelt(answer: Any, gateway: Mac | None) -> dict[str, Any]:
    """An answer of the service, or of the gateway that we asked ourselves, under the same names."""
    if isinstance(answer, Payload):
        return {**payload.spell(answer), "gateway": gateway}
    found: dict[str, Any] = msgspec.to_builtins(answer)
    return found


def tell_answer(answer: dict[str, Any], device: Mac, subject: str, *, as_json: bool) -> None:
    """Print an answer; one that says no ends the command with exit code 1."""
    if as_json:
        print_json(answer)
    if answer["status"]:
        raise click.ClickException(printable(_refusal(answer, device)))
    if not as_json:
        click.echo(printable(subject))
        click.echo(printable(f"{_answered(answer, device)}{_why(answer)}"))


def _refusal(answer: dict[str, Any], device: Mac) -> str:
    words = answer.get("errorMessage")
    reason = status_text(answer["status"])
    return (
        f"{reason}: {words}; {_answered(answer, device)}"
        if words
        else f"{reason}; {_answered(answer, device)}"
    )


def _answered(answer: dict[str, Any], device: Mac) -> str:
    took = answer.get("responseTime")
    time = "" if took is None else f" in {took:g} ms"
    if device == answer["gateway"]:
        return f"answered by the gateway itself{time}"
    return f"answered by {_who(answer)}{time}, through gateway {answer['gateway']}"


def _who(answer: dict[str, Any]) -> str:
    """Gateways before 2.0.0 do not tell who answered."""
    words = _ORIGINS.get(answer.get("origin", -1), "the device, or the gateway instead of it")
    return words.format(extender=answer.get("extenderId", "?"))


def _why(answer: dict[str, Any]) -> str:
    """Why it went through this gateway, where somebody had the choice."""
    choice = answer.get("choice")
    if choice is None or choice["reason"] not in _REASONS:
        return ""
    rssi = next((each["rssi"] for each in choice["candidates"] if each["gateway"] == answer["gateway"]), None)
    heard = "" if rssi is None or choice["reason"] != "strongest" else f" ({rssi:g} dBm)"
    return f", {_REASONS[choice['reason']]}{heard}"
