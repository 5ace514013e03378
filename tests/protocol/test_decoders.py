"""Several threads decode the same type for the first time, in many processes."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "meshfleet"

_DECODE_IN_THREADS = """
import collections, contextlib, os, sys, threading
from msgspec import MsgspecError
from meshfleet.errors import FleetError
from meshfleet.protocol import requests
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.decoders import get_decoder
from meshfleet.rest.bodies import decode_body
from meshfleet.rest.job_requests import NewJob, StoredJobRequest

JOB = (
    b'{"name": "x", "firmwareId": "fw-1", "targets": {"all": true}, "gate": {"successPercent": 95},'
    b' "waves": [{"percent": 5}]}'
)
INVALID_JOB = JOB.replace(b"95", b'"many"')
CASES = {
    "decoder": (lambda data: get_decoder(StoredJobRequest).decode(data), JOB, INVALID_JOB),
    "body": (lambda data: decode_body(NewJob, data), JOB, INVALID_JOB),
    "request": (
        lambda data: requests.build_request(Operation.READ, data),
        {"priority": 1},
        {"priority": 7},
    ),
}


def decode_in_thread(decode, good, bad):
    barrier.wait()
    decode(good)
    with contextlib.suppress(MsgspecError, FleetError):
        decode(bad)
        print("invalid input was accepted", file=sys.stderr)
    decode(good)


for name, case in CASES.items():
    exit_codes = collections.Counter()
    for _ in range(25):
        child = os.fork()
        if child == 0:
            sys.setswitchinterval(1e-6)
            barrier = threading.Barrier(6)
            threads = [threading.Thread(target=decode_in_thread, args=case) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            os._exit(0)
        exit_codes[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] += 1
    print(name, dict(exit_codes))
"""


def test_a_type_is_inspected_by_one_thread_at_a_time() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _DECODE_IN_THREADS], capture_output=True, text=True, check=True
    )
    assert result.stdout == "decoder {0: 25}\nbody {0: 25}\nrequest {0: 25}\n", result.stderr[-2000:]
    assert result.stderr == ""


def test_structs_are_inspected_nowhere_else() -> None:
    """Find calls of `decode(…, type=Struct)` and `convert`, which inspect a struct without the lock."""
    calls = [
        (str(path.relative_to(SOURCE)), ast.unparse(call))
        for path in SOURCE.rglob("*.py")
        if any(
            name in (text := path.read_text("utf-8")) for name in ("msgspec.convert", "msgspec.json.decode")
        )
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and _inspects_struct(call)
    ]
    assert calls == [("protocol/payload.py", "msgspec.convert(values, kind)")]  # it gets a decoder first


def _inspects_struct(call: ast.Call) -> bool:
    if ast.unparse(call.func) == "msgspec.convert":
        return True
    types = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
    names = {node.id for value in types for node in ast.walk(value) if isinstance(node, ast.Name)}
    return ast.unparse(call.func) == "msgspec.json.decode" and not names <= {*dir(builtins), "Any"}
