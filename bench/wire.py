"""Decoding of payloads, topics and values, compared with the same work done with pydantic."""

from __future__ import annotations

import json
import statistics
from binascii import unhexlify
from struct import unpack
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, StringConstraints, TypeAdapter

from bench.harness import Case, measure_cpu_per_operation
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.reports import REPORT_DECODERS
from meshfleet.protocol.topics import TopicCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

THRESHOLDS = {"payload": 0.6, "topic, first sight": 3.0, "topic, cached": 0.2, "raw to decoded": 2.0}
"""Maximum microseconds per operation."""

PAYLOADS = {
    Kind.HEARTBEAT: b'{"time":"2026-11-15T10:07:20.585Z","seq":41,"status":0,"lastCount":3}',
    Kind.RSSI: b'{"time":"2026-11-15T10:07:20.585Z","parent":"d0cf5e000001","rssi":-58,"channel":38,"seq":4}',
    Kind.MEASUREMENT: b'{"time":"2026-11-15T10:07:20.585Z","seq":41,"value":"1234"}',
    Kind.MEASUREMENT_DECODED: b'{"time":"2026-11-15T10:07:20.585Z","seq":41,"value":46.6}',
    Kind.PROPERTY: b'{"time":"2026-11-15T10:07:20.585Z","value":"200000001501","seq":3}',
    Kind.EVENT_DECODED: b'{"time":"2026-11-15T10:07:20.585Z","seq":1,"value":{"modelNumber":24}}',
}
TOPIC = "mt/gateway/d0cf5e000001/device/d0cf5e0000a1/measurement-decoded/temperature"
VALUES = {
    "temperature": "1234",
    "pressure": "3d17c27f",
    "battery-level": "5f",
    "firmware-version": "030402",
    "motion": "200000001501",
    "normal-mode-advertisement-interval": "00c80a",
    "firmware-update-state": "023200001803040200",
}


Mac = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
Hex = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-fA-F]{2})*$")]
Seq = Annotated[int, Field(ge=0, le=255)]


class Heartbeat(BaseModel):
    """Report as a pydantic model."""

    time: AwareDatetime
    seq: Seq
    status: int
    last_count: Annotated[int, Field(ge=0)] | None = Field(None, alias="lastCount")


class Rssi(BaseModel):
    """Report as a pydantic model."""

    time: AwareDatetime
    parent: Mac
    rssi: int
    channel: Annotated[int, Field(ge=37, le=39)] | None = None
    seq: Seq | None = None
    unreachable: bool = False


class Raw(BaseModel):
    """Report as a pydantic model."""

    time: AwareDatetime
    seq: Seq | None = None
    value: Hex


class Decoded(BaseModel):
    """Report as a pydantic model."""

    time: AwareDatetime
    seq: Seq
    value: Any = None
    ext: dict[str, Any] | None = None


class Topic(BaseModel):
    """Topic as a pydantic model."""

    gateway: Mac
    device: Mac
    kind: Kind
    identifier: str


MODELS: Mapping[Kind, type[BaseModel]] = {
    Kind.HEARTBEAT: Heartbeat,
    Kind.RSSI: Rssi,
    Kind.MEASUREMENT: Raw,
    Kind.MEASUREMENT_DECODED: Decoded,
    Kind.PROPERTY: Raw,
    Kind.EVENT_DECODED: Decoded,
}


class Interval(BaseModel):
    """Value of two fields as a pydantic model."""

    interval: int
    denominator: int


class MotionExt(BaseModel):
    """Additional fields of a value as a pydantic model."""

    transitionCounter: int  # noqa: N815 # its name in JSON
    isTransition: bool  # noqa: N815 # its name in JSON


class Motion(BaseModel):
    """Value with additional fields as a pydantic model."""

    value: int
    ext: MotionExt


def _interval(value: str) -> Interval:
    interval, denominator = unpack(">HB", unhexlify(value))
    return Interval(interval=interval, denominator=denominator)


def _motion(value: str) -> Motion:
    motion, counter, flags = unpack(">BIB", unhexlify(value))
    return Motion(value=motion, ext=MotionExt(transitionCounter=counter, isTransition=bool(flags & 1)))


TEMPERATURE = TypeAdapter(
    Annotated[
        float, BeforeValidator(lambda value: int.from_bytes(unhexlify(value), "big", signed=True) / 100)
    ]
)


def _pydantic_topic(topic: str) -> Topic:
    _, _, gateway, _, device, kind, identifier = topic.split("/")
    return Topic.model_validate(
        {"gateway": gateway, "device": device, "kind": kind, "identifier": identifier}
    )


NEW_TOPICS = [
    f"mt/gateway/d0cf5e000001/device/{device:012x}/measurement-decoded/temperature" for device in range(1000)
]


def _parse_all(topics: list[str]) -> None:
    parse = TopicCodec(identifier_names=BUILTIN_CATALOGUE.names).parse
    for topic in topics:
        parse(topic)


def _raw_to_decoded(name: str) -> Callable[[str], object]:
    return lambda value: BUILTIN_CATALOGUE.decode(name, unhexlify(value))


def run(*, quick: bool) -> dict[str, Any]:
    """Measure all cases, and return their metrics with thresholds and ratios."""
    topics = TopicCodec(identifier_names=BUILTIN_CATALOGUE.names)
    cases = {f"payload, {kind}": Case(REPORT_DECODERS[kind], data) for kind, data in PAYLOADS.items()}
    cases["topic, first sight"] = Case(_parse_all, NEW_TOPICS, operations=len(NEW_TOPICS))
    cases["topic, cached"] = Case(topics.parse, TOPIC)
    cases |= {f"raw to decoded, {name}": Case(_raw_to_decoded(name), value) for name, value in VALUES.items()}
    pydantic_cases = {
        f"payload, {kind}": Case(MODELS[kind].model_validate_json, data) for kind, data in PAYLOADS.items()
    }
    pydantic_cases["topic, first sight"] = Case(_pydantic_topic, TOPIC)
    for name, call in {"normal-mode-advertisement-interval": _interval, "motion": _motion}.items():
        pydantic_cases[f"raw to decoded, {name}"] = Case(call, VALUES[name])
    pydantic_cases["raw to decoded, temperature"] = Case(TEMPERATURE.validate_python, VALUES["temperature"])
    anchor = {"json.loads of a heartbeat": Case(json.loads, PAYLOADS[Kind.HEARTBEAT])}
    ours = measure_cpu_per_operation(cases, quick=quick)
    theirs = measure_cpu_per_operation(pydantic_cases, quick=quick)
    return {
        "anchor": measure_cpu_per_operation(anchor, quick=quick),
        "cases": {name: _build_row(name, cpu, theirs.get(name)) for name, cpu in ours.items()},
        "summary": {
            group: {"mean_us": round(_mean(ours, group), 3), "worst_us": _worst(ours, group), "bar_us": bar}
            for group, bar in THRESHOLDS.items()
        },
    }


def _mean(metrics: Mapping[str, float], group: str) -> float:
    return statistics.fmean(cpu for name, cpu in metrics.items() if name.startswith(group))


def _worst(metrics: Mapping[str, float], group: str) -> float:
    return max(cpu for name, cpu in metrics.items() if name.startswith(group))


def _build_row(name: str, cpu: float, pydantic: float | None) -> dict[str, Any]:
    bar = next(bar for group, bar in THRESHOLDS.items() if name.startswith(group))
    metrics = {"cpu_us": cpu, "bar_us": bar, "met": cpu < bar}
    if pydantic is not None:
        metrics |= {"pydantic_us": pydantic, "times_faster": round(pydantic / cpu, 1)}
    return metrics
