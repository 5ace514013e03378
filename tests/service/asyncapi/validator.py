"""Validation of documents with the official AsyncAPI parser (Node.js)."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.external_tools import ASYNCAPI_PARSER, require
from tests.node import NODE, PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_SECONDS: Final = 60
"""Seconds until the parser must have finished; reached only if it hangs."""

_INFORMATION_SEVERITY: Final = 2
"""Severity of recommendations; errors have 0 and warnings 1."""


class Fault(msgspec.Struct, frozen=True):
    """Fault that the parser reports."""

    severity: int
    code: str
    path: list[str | int]
    message: str


class _ParserResult(msgspec.Struct, rename="camel"):
    is_read: bool
    faults: list[Fault]


def validate_documents(documents: Sequence[dict[str, Any]]) -> list[list[Fault]]:
    """Return the errors and warnings of each document; empty for a valid one."""
    require(ASYNCAPI_PARSER)
    run = subprocess.run(
        [NODE, PROGRAMS / "asyncapi.mjs"],
        input=msgspec.json.encode(documents),
        capture_output=True,
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
    results = msgspec.json.decode(run.stdout, type=list[_ParserResult])
    assert len(results) == len(documents)
    return [_list_faults(result) for result in results]


def _list_faults(result: _ParserResult) -> list[Fault]:
    faults = [fault for fault in result.faults if fault.severity < _INFORMATION_SEVERITY]
    assert result.is_read or faults
    return faults
