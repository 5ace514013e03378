"""Text output of executions: evidence and timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshfleet.cli.job_output import format_evidence, print_execution
from meshfleet.client import Evidence, ExecutionDetail, ExecutionState, Transition
from tests.row_tables import each_row

if TYPE_CHECKING:
    import pytest

AT = "2030-01-01T00:00:00.000Z"
STATE = {"state": "failed", "percent": 40, "error": 7, "modelNumber": 24, "version": "3.1.0"}


@each_row(
    ("kind", "content", "text"),
    [
        ("response", {"step": "start", "status": 0, "value": None}, "response to start: fine"),
        ("response", {"step": "start", "status": 9, "value": None}, "response to start: timeout (status 9)"),
        (
            "response",
            {"step": "state", "status": 0, "value": STATE},
            "response to state: state failed, percent 40, error 7, modelNumber 0018, version 3.1.0",
        ),
        (
            "response",
            {"step": "version", "status": 0, "value": "03010002"},
            "response to version: 03010002 (firmware-version 3.1.0-beta.2)",
        ),
        ("response", {"step": "version", "status": 0, "value": "zz"}, "response to version: zz"),
        ("response", {"step": "state", "status": 0, "value": {"a": 1}}, "response to state: a 1"),
        ("response", {"step": "state", "status": 0, "value": [1]}, "response to state: [1]"),
        ("no-response", {"step": "apply"}, "no response to apply"),
        ("no-response", {"step": "apply", "reason": "it is busy"}, "no response to apply: it is busy"),
        ("heartbeat", {"status": 0, "time": AT}, f"heartbeat of {AT}: fine"),
        ("heartbeat", {"status": 3, "time": AT}, f"heartbeat of {AT}: status 3"),
        (
            "dfu",
            {"gateway": "02005e000003", "parent": None, "rssi": -60},
            "in DFU mode: -60 dBm at unknown, gateway 02005e000003",
        ),
        ("news", {"of": ["tomorrow"]}, 'news: {"of":["tomorrow"]}'),
        ("dfu", None, "dfu: null"),
    ],
)
def test_evidence_is_formatted(kind: str, content: Any, text: str) -> None:
    evidence = Evidence(time=AT, kind=kind, attempt=1, content=content)
    assert format_evidence(evidence) == text


def _time(minute: int) -> str:
    return f"2030-01-01T00:{minute:02}:00.000Z"


def _evidence(minute: int, kind: str, **content: object) -> Evidence:
    return Evidence(time=_time(minute), kind=kind, attempt=1, content=content)


def _transition(
    minute: int,
    before: ExecutionState | None,
    after: ExecutionState,
    cause: str,
    proof: Evidence | None = None,
) -> Transition:
    return Transition(
        from_=before, to=after, time=_time(minute), attempt=1, actor="meshfleet", cause=cause, evidence=proof
    )


def test_evidence_is_listed_between_transitions_by_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    states = ExecutionState
    execution = ExecutionDetail(
        device_id="bmac-0200000000aa",
        state=states.QUEUED,
        attempt=2,
        progress=0,
        waiting_for="back-off: it is tried again",
        reason="the transfer broke off at 40 %",
        reason_code="TRANSFER_LOST",
        method=None,
        wave=None,
        gateway=None,
        started_at=None,
        updated_at=_time(3),
        from_version=None,
        to_version="3.1.0",
        transitions=[
            _transition(0, None, states.QUEUED, "the job was made"),
            _transition(1, states.QUEUED, states.DISPATCHED, "it begins"),
            _transition(
                3, states.DISPATCHED, states.QUEUED, "it broke off", _evidence(3, "no-response", step="state")
            ),
        ],
        evidence=[_evidence(2, "heartbeat", status=0, time=AT)],
        later=[_evidence(4, "no-response", step="start")],
    )
    print_execution(execution, "job-7")
    assert (
        capsys.readouterr().out
        == """\
bmac-0200000000aa is QUEUED in job-7, 0 %: back-off: it is tried again

version       unknown -> 3.1.0
attempt       2
last attempt  the transfer broke off at 40 % (TRANSFER_LOST)
changed       2030-01-01T00:03:00.000Z

time                      step                  why
2030-01-01T00:00:00.000Z  -> QUEUED             the job was made
2030-01-01T00:01:00.000Z  QUEUED -> DISPATCHED  it begins
2030-01-01T00:02:00.000Z                        heartbeat of 2030-01-01T00:00:00.000Z: fine
2030-01-01T00:03:00.000Z  DISPATCHED -> QUEUED  it broke off
                                                no response to state
2030-01-01T00:04:00.000Z  (ended)               no response to start
"""
    )
