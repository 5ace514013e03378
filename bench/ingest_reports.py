"""Reports of the gateways of `bench.ingest`: prepared bytes with placeholders for the changing parts.

In one round every device sends twenty reports: 14 measurements, 2 properties, 1 event, 2 heartbeats and 1
RSSI. Half of the gateways are in raw mode, the others in decoded mode. Each series counts `seq` without gaps,
its values drift, and `time` is now. Each placeholder has a fixed width, so that all packets of a report have
the same length.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.broker_clients import gateway_mac
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Values = tuple[bytes, ...]

VALUE_CYCLE: Final = 97
"""Number of values of a series before they repeat."""

SEQS: Final = tuple(b"%3d" % number for number in range(256))
IDS: Final = tuple(number.to_bytes(2, "big") for number in range(1, 65_536))

_TIME: Final = b'{"time":"'
_SEQ: Final = b'","seq":'
_TIME_WIDTH: Final = len("2026-11-15T10:07:20.585Z")


class ReportKind(NamedTuple):
    """Kind and identifier of one of the twenty reports."""

    kind: str
    identifier: str = ""
    """Name of the identifier; empty if the kind has none."""


MEASURED: Final = 5 * ["temperature"] + 4 * ["humidity"] + 3 * ["pressure"] + 2 * ["light-intensity"]
PROPERTIES: Final = (
    "battery-level",
    "uptime",
    "vdd",
    "motion",
    "firmware-version",
    "total-minutes-in-motion",
)
EVENTS: Final = ("motion", "alarm")
_ACKED: Final = frozenset({"measurement", "event"})
REPORTS_PER_ROUND: Final = len(MEASURED) + 6
"""Reports of a device in one round."""

_PHASE_SHIFT: Final = 7
"""Shift between the rounds of neighboring devices, so that all kinds are mixed at any time."""


class Report(NamedTuple):
    """Report that is repeated in every round."""

    topic: bytes
    """Packet up to its packet id."""
    times: int
    """Number of reports of its series in a round."""
    place: int
    """Position among the reports of its series in a round."""
    start: int
    """Index of its first value."""
    before: bytes
    values: Values
    after: bytes
    device: int
    is_sample: bool
    """Whether it is stored as a sample; otherwise it updates only states and roll-ups."""
    is_acked: bool
    """Whether a gateway with API version 2.4.0 gets an ack for it."""


def device_mac(of: int, number: int) -> str:
    """Return the MAC of a device of a gateway."""
    return f"d0cf{of:04x}{number:04x}"


def build_reports(of: int, devices: int) -> list[Report]:
    """Build one round of reports of a gateway, in the order of sending."""
    kinds = [_report_kinds(number) for number in range(devices)]
    order = [
        (number, kinds[number][(turn + _PHASE_SHIFT * number) % REPORTS_PER_ROUND])
        for turn in range(REPORTS_PER_ROUND)
        for number in range(devices)
    ]
    times, places = Counter(order), Counter[tuple[int, ReportKind]]()
    reports = []
    for series in order:
        number, report_kind = series
        reports.append(_report(of, number, report_kind, times=times[series], place=places[series]))
        places[series] += 1
    return reports


def encode_reports(reports: Iterable[Report], ids: Iterable[bytes], *, turn: int, time: bytes) -> bytes:
    """Encode reports with these packet ids, in the round with the number `turn`."""
    parts: list[bytes] = []
    for (topic, times, place, start, before, values, after, _, _, _), packet_id in zip(
        reports, ids, strict=True
    ):
        number = turn * times + place
        parts += (
            topic,
            packet_id,
            _TIME,
            time,
            _SEQ,
            SEQS[number & 0xFF],
            before,
            values[(number + start) % VALUE_CYCLE],
            after,
        )
    return b"".join(parts)


def count_samples(of: int, devices: int, number: int, *, sent: int) -> int:
    """Return the number of samples of a device among the first `sent` reports of its gateway."""
    flags = [each.is_sample and each.device == number for each in build_reports(of, devices)]
    rounds, rest = divmod(sent, len(flags))
    return rounds * sum(flags) + sum(flags[:rest])


def count_acks(devices: int, *, sent: int) -> int:
    """Return the number of acks for the first `sent` reports of a gateway."""
    flags = [each.is_acked for each in build_reports(0, devices)]
    rounds, rest = divmod(sent, len(flags))
    return rounds * sum(flags) + sum(flags[:rest])


def _report_kinds(number: int) -> list[ReportKind]:
    properties = [PROPERTIES[(number + each) % len(PROPERTIES)] for each in range(2)]
    return [
        *(ReportKind("measurement", name) for name in MEASURED),
        *(ReportKind("property", name) for name in properties),
        ReportKind("event", EVENTS[number % len(EVENTS)]),
        *[ReportKind("heartbeat")] * 2,
        ReportKind("rssi"),
    ]


def _report(of: int, number: int, report_kind: ReportKind, *, times: int, place: int) -> Report:
    is_raw = of % 2 == 1
    before, values, after = _content(of, number, report_kind, is_raw=is_raw)
    tail = report_kind.kind
    if report_kind.identifier:
        tail += (
            f"/{BUILTIN_CATALOGUE[report_kind.identifier].id}"
            if is_raw
            else f"-decoded/{report_kind.identifier}"
        )
    width = len(_TIME) + _TIME_WIDTH + len(_SEQ) + len(SEQS[0]) + len(before) + len(values[0]) + len(after)
    topic = f"mt/gateway/{gateway_mac(of)}/device/{device_mac(of, number)}/{tail}"
    packet = encode_packet(Publish(topic, b" " * width, 1, packet_id=1))
    return Report(
        topic=packet[: -width - len(IDS[0])],
        times=times,
        place=place,
        start=(of * 31 + number * 7) % VALUE_CYCLE,
        before=before,
        values=values,
        after=after,
        device=number,
        is_sample=bool(report_kind.identifier),
        is_acked=report_kind.kind in _ACKED,
    )


def _content(of: int, number: int, report_kind: ReportKind, *, is_raw: bool) -> tuple[bytes, Values, bytes]:
    """Return the payload before the value, the values, and the payload after it."""
    match report_kind.kind:
        case "heartbeat":
            return b',"status":0,"lastCount":', _COUNTS, b"}"
        case "rssi":
            parent = gateway_mac(of) if number % 5 == 0 else device_mac(of, number - number % 5)
            return f',"parent":"{parent}","channel":{37 + number % 3},"rssi":'.encode(), _RSSI, b"}"
        case _ if is_raw:
            return b',"value":"', _RAW[report_kind.identifier], b'"}'
        case _:
            return b',"value":', _DECODED[report_kind.identifier], b"}"


# --- Drifting values ---

_random = Random(1)  # noqa: S311 # the same values every time


def _drift(low: float, high: float, *, step: float, digits: int = 0) -> list[float]:
    value, values = (low + high) / 2, []
    for _ in range(VALUE_CYCLE):
        value = min(high, max(low, value + _random.uniform(-step, step)))
        values.append(round(value, digits) if digits else round(value))
    return values


_VALUES: Final[dict[str, Sequence[object]]] = {
    "temperature": _drift(10, 29, step=0.2, digits=2),
    "humidity": _drift(20, 90, step=0.5, digits=1),
    "pressure": _drift(980, 1030, step=0.05, digits=6),
    "light-intensity": _drift(0, 2000, step=80),
    "battery-level": _drift(10, 99, step=1),
    "uptime": [1_000_000 + 60 * each for each in range(VALUE_CYCLE)],
    "vdd": _drift(2400, 3300, step=10),
    "motion": [(0, 16, 32)[each % 3] for each in range(VALUE_CYCLE)],
    "firmware-version": ["2.4.1"] * VALUE_CYCLE,
    "total-minutes-in-motion": [30_000 + each for each in range(VALUE_CYCLE)],
    "alarm": [each % 2 == 0 for each in range(VALUE_CYCLE)],
}


def _format_values(values: Iterable[object], format_value: Callable[[object], str]) -> Values:
    texts = [format_value(each) for each in values]
    return tuple(text.rjust(max(map(len, texts))).encode() for text in texts)


_DECODED: Final = {name: _format_values(values, json.dumps) for name, values in _VALUES.items()}
_RAW: Final = {
    name: tuple(BUILTIN_CATALOGUE.encode(name, value).hex().encode() for value in values)
    for name, values in _VALUES.items()
}
_COUNTS: Final = _format_values((1 + each % 3 for each in range(VALUE_CYCLE)), str)
_RSSI: Final = _format_values(_drift(-92, -41, step=3), str)
