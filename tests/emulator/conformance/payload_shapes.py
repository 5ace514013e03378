"""What reports and responses must look like, field by field: written down apart from the code under test."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.emulator.conformance.gateway_process import GatewayProcess
    from tests.emulator.conformance.recorder import RecordedMessage


def matches(pattern: str) -> Callable[[Any], bool]:
    """A text of a form."""
    return lambda given: isinstance(given, str) and re.fullmatch(pattern, given) is not None


def is_integer_between(lowest: int, highest: int) -> Callable[[Any], bool]:
    """A JSON number without a fraction, in its limits."""
    return lambda given: type(given) is int and lowest <= given <= highest


def is_time(given: Any) -> bool:
    """UTC, with exactly three fractional digits."""
    if not matches(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")(given):
        return False
    return datetime.fromisoformat(given).tzinfo is not None


is_mac = matches("[0-9a-f]{12}")
is_identifier = matches("([0-9a-f]{2}){1,4}")
is_name = matches("[a-z][a-z0-9-]*[a-z0-9]")
is_hex = matches("([0-9a-f]{2})*")
is_seq = is_integer_between(0, 255)
is_rssi = is_integer_between(-127, -1)
is_code = is_integer_between(0, 0xFFFF_FFFF)


def is_object(given: Any) -> bool:
    """A JSON object."""
    return isinstance(given, dict)


def is_json(_given: Any) -> bool:
    """Whatever JSON has."""
    return True


class Shape(NamedTuple):
    """The fields of a payload besides `time`."""

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
            "unreachable": lambda given: isinstance(given, bool),
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
"""The eleven kinds."""

WITHOUT_IDENTIFIER: Final = ("heartbeat", "dfu", "rssi")


def check_report(heard: RecordedMessage) -> None:
    """A report has the topic and the fields of its kind, and nothing else."""
    place, device, kind, *identifier = heard.parts
    assert place == "device"
    assert is_mac(device), heard.topic
    if kind in WITHOUT_IDENTIFIER:
        assert identifier == [], heard.topic
    else:
        is_fit = is_name if kind.endswith("-decoded") else is_identifier
        assert len(identifier) == 1, heard.topic
        assert is_fit(identifier[0]), heard.topic
    shape = REPORTS[kind]
    _check_fields(heard.payload, {"time": is_time, **shape.always}, shape.sometimes)


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
    """Who answers, and how it was reached."""

    origin: int
    route: tuple[str, ...] = ()
    extender_route: tuple[str, ...] = ()
    """The last one is the extender."""

    def fields(self) -> dict[str, Any]:
        """What a response says of it."""
        found: dict[str, Any] = {"origin": self.origin}
        if self.route:
            found["route"] = "-".join(self.route)
        if self.extender_route:
            found["extenderId"] = self.extender_route[-1].upper()
            found["extenderRoute"] = "-".join(self.extender_route)
        return found


FROM_GATEWAY: Final = ExpectedRoute(0)
"""The gateway answers for itself."""
ON_BEHALF_OF_DEVICE: Final = ExpectedRoute(32)
"""The gateway answers for somebody else."""


def check_response(
    gateway: GatewayProcess,
    response: dict[str, Any],
    way: ExpectedRoute,
    *,
    status: int = 0,
    since: str = "2.0.0",
) -> dict[str, Any]:
    """A response tells what its version has, the truth of its way, and gives what else it holds.

    An id must have been taken out before. `since` is the version that brought `responseTime` and `origin`.
    """
    rest = dict(response)
    assert is_time(rest.pop("time")), response
    assert type(response["status"]) is int
    assert rest.pop("status") == status, response
    if gateway.has_version(since):
        assert is_integer_between(0, 600_000)(rest.pop("responseTime")), response
    told = way.fields() if gateway.has_version(since) else {}
    assert {name: rest.pop(name, None) for name in told} == told, response
    if status:
        assert isinstance(rest.pop("errorMessage", ""), str), response
    strange = {"responseTime", "origin", "route", "extenderId", "extenderRoute", "errorMessage", "id"}
    assert not strange & rest.keys(), response
    return rest
