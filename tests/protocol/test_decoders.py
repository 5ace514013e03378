"""Several threads that decode the same type for the first time: each of many processes does it once."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "meshfleet"

_FIRST = """
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
NO_JOB = JOB.replace(b"95", b'"many"')
WAYS = {
    "decoder": (lambda given: get_decoder(StoredJobRequest).decode(given), JOB, NO_JOB),
    "body": (lambda given: decode_body(NewJob, given), JOB, NO_JOB),
    "request": (
        lambda given: requests.build_request(Operation.READ, given),
        {"priority": 1},
        {"priority": 7},
    ),
}


def begin(way, good, bad):
    barrier.wait()
    way(good)
    with contextlib.suppress(MsgspecError, FleetError):
        way(bad)
        print("is taken", file=sys.stderr)
    way(good)


for name, way in WAYS.items():
    ended = collections.Counter()
    for _ in range(25):
        child = os.fork()
        if child == 0:
            sys.setswitchinterval(1e-6)
            barrier = threading.Barrier(6)
            threads = [threading.Thread(target=begin, args=way) for _ in range(6)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            os._exit(0)
        ended[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] += 1
    print(name, dict(ended))
"""


def test_a_type_is_learned_by_one_thread_at_a_time() -> None:
    done = subprocess.run([sys.executable, "-c", _FIRST], capture_output=True, text=True, check=True)
    assert done.stdout == "decoder {0: 25}\nbody {0: 25}\nrequest {0: 25}\n", done.stderr[-2000:]
    assert done.stderr == ""


def test_structs_are_learned_nowhere_else() -> None:
    """`decode(…, type=Struct)` and `convert` have whoever comes first learn it, while others may come."""
    found = [
        (str(path.relative_to(SOURCE)), ast.unparse(call))
        for path in SOURCE.rglob("*.py")
        if any(
            name in (text := path.read_text("utf-8")) for name in ("msgspec.convert", "msgspec.json.decode")
        )
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and _learns(call)
    ]
    assert found == [("protocol/payload.py", "msgspec.convert(values, kind)")]  # It has asked for a decoder.


def _learns(call: ast.Call) -> bool:
    if ast.unparse(call.func) == "msgspec.convert":
        return True
    kinds = [each.value for each in call.keywords if each.arg == "type"]
    names = {each.id for kind in kinds for each in ast.walk(kind) if isinstance(each, ast.Name)}
    return ast.unparse(call.func) == "msgspec.json.decode" and not names <= {*dir(builtins), "Any"}
