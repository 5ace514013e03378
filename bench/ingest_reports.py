"""What the gateways of `bench.ingest` report: ready-made bytes with holes for what differs from time to time.

In one round every device sends twenty: 14 measurements, 2 properties, 1 event, 2 heartbeats and 1 RSSI. One
half of the gateways is in raw mode, the other in decoded mode. Each series counts its `seq` without holes,
its values wander, and `time` is now. Texts in the holes have one width each, so the length of a packet stays.
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
"""Values that a series goes through before it begins again."""

SEQS: Final = tuple(b"%3d" % number for number in range(256))
IDS: Final = tuple(number.to_bytes(2, "big") for number in range(1, 65_536))

_TIME: Final = b'{"time":"'
_SEQ: Final = b'","seq":'
_TIME_WIDTH: Final = len("2026-11-15T10:07:20.585Z")


class ReportKind(NamedTuple):
    """One report of the twenty."""

    kind: str
    identifier: str = ""
    """By name; empty where the kind has none."""


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

_IN_A_ROUND_APART: Final = 7
"""How far neighbours are apart in their rounds, so that all kinds come all the time."""


class Report(NamedTuple):
    """A report that comes again in every round."""

    topic: bytes
    """The packet up to its id."""
    times: int
    """How often its series comes in a round."""
    place: int
    """Which of these it is."""
    start: int
    """Where its values begin."""
    before: bytes
    values: Values
    after: bytes
    device: int
    is_sample: bool
    """Else it becomes state and roll-ups only."""
    is_acked: bool
    """Whether a gateway of version 2.4.0 gets an ack for it."""


def device_mac(of: int, number: int) -> str:
    """The MAC of a device."""
    return f"d0cf{of:04x}{number:04x}"


def build_reports(of: int, devices: int) -> list[Report]:
    """A round of a gateway, in the order in which it sends."""
    forms = [_forms(number) for number in range(devices)]
    order = [
        (number, forms[number][(turn + _IN_A_ROUND_APART * number) % REPORTS_PER_ROUND])
        for turn in range(REPORTS_PER_ROUND)
        for number in range(devices)
    ]
    times, places = Counter(order), Counter[tuple[int, ReportKind]]()
    made = []
    for series in order:
        number, form = series
        made.append(_report(of, number, form, times=times[series], place=places[series]))
        places[series] += 1
    return made


def encode_reports(some: Iterable[Report], ids: Iterable[bytes], *, turn: int, time: bytes) -> bytes:
    """The packets of reports in one of the rounds."""
    parts: list[bytes] = []
    for (topic, times, place, start, before, values, after, _, _, _), packet_id in zip(
        some, ids, strict=True
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
    """How many samples of a device are among the first so many reports of its gateway."""
    flags = [each.is_sample and each.device == number for each in build_reports(of, devices)]
    rounds, rest = divmod(sent, len(flags))
    return rounds * sum(flags) + sum(flags[:rest])


def count_acks(devices: int, *, sent: int) -> int:
    """How many of the first so many reports of a gateway are acknowledged as samples."""
    flags = [each.is_acked for each in build_reports(0, devices)]
    rounds, rest = divmod(sent, len(flags))
    return rounds * sum(flags) + sum(flags[:rest])


def _forms(number: int) -> list[ReportKind]:
    held = [PROPERTIES[(number + each) % len(PROPERTIES)] for each in range(2)]
    return [
        *(ReportKind("measurement", name) for name in MEASURED),
        *(ReportKind("property", name) for name in held),
        ReportKind("event", EVENTS[number % len(EVENTS)]),
        *[ReportKind("heartbeat")] * 2,
        ReportKind("rssi"),
    ]


def _report(of: int, number: int, form: ReportKind, *, times: int, place: int) -> Report:
    is_raw = of % 2 == 1
    before, values, after = _content(of, number, form, is_raw=is_raw)
    tail = form.kind
    if form.identifier:
        tail += f"/{BUILTIN_CATALOGUE[form.identifier].id}" if is_raw else f"-decoded/{form.identifier}"
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
        is_sample=bool(form.identifier),
        is_acked=form.kind in _ACKED,
    )


def _content(of: int, number: int, form: ReportKind, *, is_raw: bool) -> tuple[bytes, Values, bytes]:
    """What stands before the value, the values, and what stands behind."""
    match form.kind:
        case "heartbeat":
            return b',"status":0,"lastCount":', _COUNTS, b"}"
        case "rssi":
            parent = gateway_mac(of) if number % 5 == 0 else device_mac(of, number - number % 5)
            return f',"parent":"{parent}","channel":{37 + number % 3},"rssi":'.encode(), _RSSI, b"}"
        case _ if is_raw:
            return b',"value":"', _RAW[form.identifier], b'"}'
        case _:
            return b',"value":', _DECODED[form.identifier], b"}"


# --- Values that wander ---

_random = Random(1)  # noqa: S311 # the same values every time


def _wander(low: float, high: float, *, step: float, digits: int = 0) -> list[float]:
    value, values = (low + high) / 2, []
    for _ in range(VALUE_CYCLE):
        value = min(high, max(low, value + _random.uniform(-step, step)))
        values.append(round(value, digits) if digits else round(value))
    return values


_VALUES: Final[dict[str, Sequence[object]]] = {
    "temperature": _wander(10, 29, step=0.2, digits=2),
    "humidity": _wander(20, 90, step=0.5, digits=1),
    "pressure": _wander(980, 1030, step=0.05, digits=6),
    "light-intensity": _wander(0, 2000, step=80),
    "battery-level": _wander(10, 99, step=1),
    "uptime": [1_000_000 + 60 * each for each in range(VALUE_CYCLE)],
    "vdd": _wander(2400, 3300, step=10),
    "motion": [(0, 16, 32)[each % 3] for each in range(VALUE_CYCLE)],
    "firmware-version": ["2.4.1"] * VALUE_CYCLE,
    "total-minutes-in-motion": [30_000 + each for each in range(VALUE_CYCLE)],
    "alarm": [each % 2 == 0 for each in range(VALUE_CYCLE)],
}


def _spelt(values: Iterable[object], spell: Callable[[object], str]) -> Values:
    texts = [spell(each) for each in values]
    return tuple(text.rjust(max(map(len, texts))).encode() for text in texts)


_DECODED: Final = {name: _spelt(values, json.dumps) for name, values in _VALUES.items()}
_RAW: Final = {
    name: tuple(BUILTIN_CATALOGUE.encode(name, value).hex().encode() for value in values)
    for name, values in _VALUES.items()
}
_COUNTS: Final = _spelt((1 + each % 3 for each in range(VALUE_CYCLE)), str)
_RSSI: Final = _spelt(_wander(-92, -41, step=3), str)
