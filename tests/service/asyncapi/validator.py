"""The parser of those who make AsyncAPI, as a judge of documents."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.external_tools import ASYNCAPI_PARSER, require
from tests.node import NODE, PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

PATIENCE: Final = 60
"""Seconds until it must have judged; reached only when it never does."""

_INFORMATION: Final = 2
"""Errors are 0 and warnings 1; from here on it only recommends."""


class Fault(msgspec.Struct, frozen=True):
    """What it finds wrong."""

    severity: int
    code: str
    path: list[str | int]
    message: str


class _Verdict(msgspec.Struct, rename="camel"):
    is_read: bool
    faults: list[Fault]


def validate_documents(documents: Sequence[dict[str, Any]]) -> list[list[Fault]]:
    """Errors and warnings of each document; none of one that is right."""
    require(ASYNCAPI_PARSER)
    run = subprocess.run(
        [NODE, PROGRAMS / "asyncapi.mjs"],
        input=msgspec.json.encode(documents),
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
    verdicts = msgspec.json.decode(run.stdout, type=list[_Verdict])
    assert len(verdicts) == len(documents)
    return [_faults(verdict) for verdict in verdicts]


def _faults(verdict: _Verdict) -> list[Fault]:
    faults = [fault for fault in verdict.faults if fault.severity < _INFORMATION]
    assert verdict.is_read or faults
    return faults
