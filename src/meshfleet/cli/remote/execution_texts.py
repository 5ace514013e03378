"""The part of a device in a job as people read it: where it is, and its story with what proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec

from meshfleet.cli.remote.printing import Column, print_facts, print_table
from meshfleet.cli.remote.values import any_text, status_text
from meshfleet.cli.terminal import printable
from meshfleet.wire.ids import model_number
from meshfleet.wire.rest import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.client import Evidence, Execution, ExecutionDetail, Transition

_VERSION: Final = "8001"
"""The only property that jobs read raw."""

_UNKNOWN: Final = "unknown"


class _Line(NamedTuple):
    """Of a story."""

    time: str
    step: str
    why: str


_STORY: Final = (
    Column("time", lambda each: each.time, is_whole=True),
    Column("step", lambda each: each.step, is_whole=True),
    Column("why", lambda each: each.why),
)


def why_of(execution: Execution) -> str:
    """What it waits for, or why it ended as it did; empty: it went well."""
    return execution.waiting_for or _reason(execution)


def tell_execution(execution: ExecutionDetail, job: str) -> None:
    """Print where it is and why, and then all that happened, line by line."""
    why = why_of(execution)
    where = f"{execution.device_id} is {execution.state} in {job}, {execution.progress} %"
    click.echo(printable(f"{where}: {why}" if why else f"{where}."))
    click.echo()
    print_facts((name, value) for name, value in _facts(execution) if value)
    click.echo()
    print_table(_STORY, _story(execution))


def evidence_text(evidence: Evidence) -> str:
    """A report, or a response to a step of the update."""
    match evidence.kind, evidence.content:
        case "response", {"step": step, "status": 0, "value": value}:
            return f"response to {step}: {_value_text(value)}"
        case "response", {"step": step, "status": int(status)}:
            return f"response to {step}: {status_text(status)}"
        case "no-response", {"step": step, **more}:
            return f"no response to {step}" + (f": {more['reason']}" if more.get("reason") else "")
        case "heartbeat", {"status": status, "time": str(at)}:
            return f"heartbeat of {at}: {'fine' if status == 0 else f'status {status}'}"
        case "dfu", {"gateway": gateway, "parent": parent, "rssi": rssi}:
            return (
                f"in DFU mode: heard by {parent or _UNKNOWN} with {rssi} dBm, gateway {gateway or _UNKNOWN}"
            )
    return f"{evidence.kind}: {msgspec.json.encode(evidence.content).decode()}"


def _facts(execution: Execution) -> Iterable[tuple[str, object]]:
    yield "version", f"{execution.from_version or 'unknown'} -> {execution.to_version}"
    yield "way", execution.method
    yield "gateway", execution.gateway
    yield "wave", execution.wave
    yield "attempt", execution.attempt
    if execution.state is ExecutionState.QUEUED and execution.attempt > 1:
        yield "last attempt", _reason(execution)
    yield "begun", execution.started_at
    yield "changed", execution.updated_at


def _reason(execution: Execution) -> str:
    code = f" ({execution.reason_code})" if execution.reason_code else ""
    return f"{execution.reason}{code}" if execution.reason else ""


def _story(execution: ExecutionDetail) -> list[_Line]:
    """All steps, each with its proof behind it, and what was seen between them."""
    told = [(step.time, [*_step(step)]) for step in execution.transitions]
    told += [(seen.time, [_Line(seen.time, "", evidence_text(seen))]) for seen in execution.evidence]
    told += [(seen.time, [_Line(seen.time, "(over)", evidence_text(seen))]) for seen in execution.later]
    return [line for _, lines in sorted(told, key=lambda each: each[0]) for line in lines]


def _step(step: Transition) -> Iterable[_Line]:
    words = f"{step.from_} -> {step.to}" if step.from_ else f"-> {step.to}"
    yield _Line(step.time, words, step.cause)
    if step.evidence is not None:
        yield _Line("", "", evidence_text(step.evidence))


def _value_text(value: Any) -> str:
    match value:
        case None:
            return "fine"
        case str():
            return any_text(_VERSION, value)
        case {"modelNumber": int(number)}:
            return _pairs(value | {"modelNumber": model_number(number)})
        case dict():
            return _pairs(value)
    return msgspec.json.encode(value).decode()


def _pairs(value: dict[str, object]) -> str:
    return ", ".join(f"{name} {each}" for name, each in value.items())
