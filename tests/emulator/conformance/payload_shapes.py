"""Expected fields of reports and responses, defined independently of the code under test."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.emulator.conformance.gateway_process import GatewayProcess
    from tests.emulator.conformance.recorder import RecordedMessage


def matches(pattern: str) -> Callable[[Any], bool]:
    """Return a check for strings that match a pattern."""
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def is_integer_between(lowest: int, highest: int) -> Callable[[Any], bool]:
    """Return a check for JSON numbers without a fraction, in a range."""
    return lambda value: type(value) is int and lowest <= value <= highest


def is_time(value: Any) -> bool:
    """Return whether a value is a UTC time with exactly three fractional digits."""
    if not matches(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")(value):
        return False
    return datetime.fromisoformat(value).tzinfo is not None


is_mac = matches("[0-9a-f]{12}")
is_identifier = matches("([0-9a-f]{2}){1,4}")
is_name = matches("[a-z][a-z0-9-]*[a-z0-9]")
is_hex = matches("([0-9a-f]{2})*")
is_seq = is_integer_between(0, 255)
is_rssi = is_integer_between(-127, -1)
is_code = is_integer_between(0, 0xFFFF_FFFF)


def is_object(value: Any) -> bool:
    """Return whether a value is a JSON object."""
    return isinstance(value, dict)


def is_json(_given: Any) -> bool:
    """Accept any JSON value."""
    return True


class Shape(NamedTuple):
    """Fields of a payload, except for `time`."""

    always: Mapping[str, Callable[[Any], bool]]
    sometimes: Mapping[str, Callable[[Any], bool]] = {}


REPORTS: Final = {
    "heartbeat": Shape(
        {"seq": is_seq, "status": is_integer_between(0, 2)}, {"lastCount": is_integer_between(0, 255)}
    ),
    "dfu": Shape({"parent": is_mac, "rssi": is_rssi}),
    "rssi": Shape(
        {"parent": is_mac, "rssi": is_rssi},
        {
            "channel": is_integer_between(37, 39),
            "seq": is_seq,
            "unreachable": lambda value: isinstance(value, bool),
        },
    ),
    "property": Shape({"value": is_hex}, {"seq": is_seq}),
    "property-decoded": Shape({"value": is_json}, {"ext": is_object, "seq": is_seq}),
    "measurement": Shape({"seq": is_seq, "value": is_hex}),
    "measurement-decoded": Shape({"seq": is_seq, "value": is_json}, {"ext": is_object}),
    "measurement-error": Shape({"seq": is_seq, "error": is_code}, {"errorExt": is_code}),
    "measurement-error-decoded": Shape({"seq": is_seq, "error": is_code}, {"errorExt": is_code}),
    "event": Shape({"seq": is_seq}, {"value": is_hex}),
    "event-decoded": Shape({"seq": is_seq}, {"value": is_json, "ext": is_object}),
}
"""Fields of the eleven kinds of reports."""

WITHOUT_IDENTIFIER: Final = ("heartbeat", "dfu", "rssi")


def check_report(message: RecordedMessage) -> None:
    """Check that a report has the topic and the fields of its kind, and no others."""
    section, device, kind, *identifier = message.parts
    assert section == "device"
    assert is_mac(device), message.topic
    if kind in WITHOUT_IDENTIFIER:
        assert identifier == [], message.topic
    else:
        is_valid = is_name if kind.endswith("-decoded") else is_identifier
        assert len(identifier) == 1, message.topic
        assert is_valid(identifier[0]), message.topic
    shape = REPORTS[kind]
    _check_fields(message.payload, {"time": is_time, **shape.always}, shape.sometimes)


def _check_fields(
    payload: dict[str, Any],
    always: Mapping[str, Callable[[Any], bool]],
    sometimes: Mapping[str, Callable[[Any], bool]],
) -> None:
    assert always.keys() <= payload.keys(), payload
    assert payload.keys() <= {*always, *sometimes}, payload
    for name, value in payload.items():
        assert {**sometimes, **always}[name](value), (name, payload)


class ExpectedRoute(NamedTuple):
    """Origin of a response and the route to it."""

    origin: int
    route: tuple[str, ...] = ()
    extender_route: tuple[str, ...] = ()
    """Route to the extender, which is the last hop."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of a response that describe this route."""
        fields: dict[str, Any] = {"origin": self.origin}
        if self.route:
            fields["route"] = "-".join(self.route)
        if self.extender_route:
            fields["extenderId"] = self.extender_route[-1].upper()
            fields["extenderRoute"] = "-".join(self.extender_route)
        return fields


FROM_GATEWAY: Final = ExpectedRoute(0)
"""Response of the gateway for itself."""
ON_BEHALF_OF_DEVICE: Final = ExpectedRoute(32)
"""Response of the gateway for a device."""


def check_response(
    gateway: GatewayProcess,
    response: dict[str, Any],
    expected_route: ExpectedRoute,
    *,
    status: int = 0,
    since: str = "2.0.0",
) -> dict[str, Any]:
    """Check the common fields of a response in its version, including its route. Return all other fields.

    The id must have been removed before. `since` is the version that introduced `responseTime` and `origin`.
    """
    rest = dict(response)
    assert is_time(rest.pop("time")), response
    assert type(response["status"]) is int
    assert rest.pop("status") == status, response
    if gateway.has_version(since):
        assert is_integer_between(0, 600_000)(rest.pop("responseTime")), response
    route_fields = expected_route.fields() if gateway.has_version(since) else {}
    assert {name: rest.pop(name, None) for name in route_fields} == route_fields, response
    if status:
        assert isinstance(rest.pop("errorMessage", ""), str), response
    unexpected_names = {
        "responseTime",
        "origin",
        "route",
        "extenderId",
        "extenderRoute",
        "errorMessage",
        "id",
    }
    assert not unexpected_names & rest.keys(), response
    return rest
