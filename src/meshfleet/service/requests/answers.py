"""Responses of gateways as they are answered over REST (rest-99)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from meshfleet.wire.rest import RequestAnswer
from meshfleet.wire.times import write_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.service.requests.entry import Entry
    from meshfleet.service.requests.gateway_selector import Route
    from meshfleet.wire.responses import Response

_AS_IT_IS: Final = ("status", "response_time", "error_message", "route", "extender_route", "value", "ext")
_SPELLED: Final[Mapping[str, Callable[[Any], object]]] = {
    "time": write_time,
    "origin": int,
    "extender_id": str.upper,
    "version": str,
}


def answer_of(response: Response, entry: Entry, route: Route) -> RequestAnswer:
    """What a gateway answered to a request, and why that gateway."""
    told: dict[str, Any] = {name: getattr(response, name, UNSET) for name in _AS_IT_IS}
    for name, spell in _SPELLED.items():
        given = getattr(response, name, UNSET)
        told[name] = given if given is UNSET else spell(given)
    if entry.secrets and told["error_message"] is not UNSET:
        told["error_message"] = entry.discreet(told["error_message"])
    return RequestAnswer(**told, id=entry.record.id, gateway=route.gateway, choice=route.choice)
