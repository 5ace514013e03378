"""Type checking of programs that use the SDK: correct ones pass, wrong ones fail for the expected reason."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.client.typing.checker import check_programs

ROOT = Path(__file__).parent.parent.parent.parent
CORRECT_PROGRAM = Path(__file__).with_name("program.py")

PREAMBLE = """
from meshfleet.client import Event, Fleet, Kind, Mesh, NewRequest, Report, Role, blocking, check
from meshfleet.testing import emulated_gateway, running_fleet

DEVICE, GATEWAY = "c0ffee000001", "02005e000001"

async def program(
    fleet: Fleet, mesh: Mesh, plain: blocking.Fleet, wire: blocking.Mesh, event: Event, report: Report
) -> None:
    """

WRONG_LINES = {
    # Unknown, missing or ill-typed arguments
    "fleet.devices.list(conected=True)": "call-arg",
    "fleet.devices.list(connected='yes')": "arg-type",
    "fleet.devices.list(labels=[1, 2])": "list-item",
    "await fleet.devices.rename(DEVICE)": "call-arg",
    "await fleet.devices.rename(DEVICE, 3)": "arg-type",
    "await fleet.requests.read(DEVICE, 0x8000)": "arg-type",
    "await fleet.requests.read(DEVICE, '8000', gatewy=GATEWAY)": "call-arg",
    "await fleet.requests.read(DEVICE, '8000', timeout='3')": "arg-type",
    "await fleet.requests.ack(DEVICE, '8800')": "call-arg",
    "fleet.samples.list(DEVICE, since=12)": "arg-type",
    "await mesh.read(GATEWAY, '8000')": "call-arg",
    "await mesh.ack(GATEWAY, DEVICE, '8800', time=12)": "arg-type",
    "await mesh.acknowledge(DEVICE)": "arg-type",
    "Fleet('http://localhost', 'me', 'correct-horse')": "call-arg",
    "Fleet('http://localhost', tls_ca='ca.pem')": "arg-type",
    "Mesh('mqtt://localhost', topic_prefix='site')": "call-arg",
    "emulated_gateway(device=3)": "call-arg",
    # Values that an enumeration does not have
    "fleet.devices.list(sort='name')": "arg-type",
    "fleet.live(types=['reprot'])": "list-item",
    "fleet.samples.list(DEVICE, kinds='smell')": "arg-type",
    "NewRequest(operation='read')": "arg-type",
    "print(report.kind is Kind.MEASUREMNT)": "attr-defined",
    "print(report.kind == Role.ADMIN)": "comparison-overlap",
    # A Mac is more than a str
    "Report(gateway=GATEWAY, device=report.device, kind=report.kind, identifier=None, body=report.body, "
    "received=report.received)": "arg-type",
    # Missing or superfluous await
    "print(fleet.devices.show(DEVICE).id)": "attr-defined",
    "fleet.devices.forget(DEVICE)": "unused-coroutine",
    "print(check(mesh.read(GATEWAY, DEVICE, '8000')))": "type-var",
    "await fleet.devices.list()": "misc",
    "print([each for each in fleet.devices.list()])": "attr-defined",
    "for each in mesh.reports(): print(each)": "attr-defined",
    "with Fleet('http://localhost'): pass": "attr-defined",
    # Missing attributes, and values that may be missing
    "print((await fleet.devices.show(DEVICE)).colour)": "attr-defined",
    "level: int = (await fleet.devices.show(DEVICE)).live.battery": "assignment",
    "name: int = (await fleet.devices.show(DEVICE)).friendly_name": "assignment",
    "print((await mesh.write(GATEWAY, DEVICE, '9802')).value)": "attr-defined",
    "print(event.data.reason)": "union-attr",
    "print(report.body.value)": "union-attr",
    # The blocking SDK is as strict
    "await plain.devices.show(DEVICE)": "misc",
    "async for each in plain.devices.list(): print(each)": "attr-defined",
    "async with blocking.Mesh('mqtt://localhost'): pass": "attr-defined",
    "plain.devices.list(sort='name')": "arg-type",
    "plain.devices.rename(DEVICE, 3)": "arg-type",
    "name: int = plain.devices.show(DEVICE).friendly_name": "assignment",
    "plain.requests.read(DEVICE, '8000', gatewy=GATEWAY)": "call-arg",
    "wire.write(GATEWAY, DEVICE)": "call-arg",
    "with running_fleet() as place: print(place.port)": "attr-defined",
}
"""Lines that are wrong in the function above, and their mypy error codes."""


@pytest.mark.part("long")  # make check also runs mypy on the correct program
def test_the_correct_program_passes_and_each_wrong_line_fails_for_its_reason(tmp_path: Path) -> None:
    wrong = {program: f"{PREAMBLE}{program}\n" for program in WRONG_LINES}
    found = check_programs(
        tmp_path, {"right": CORRECT_PROGRAM.read_text(), "empty": f"{PREAMBLE}pass\n", **wrong}
    )
    assert found.pop("right") == []
    assert found.pop("empty") == []
    assert {program: set(codes) for program, codes in found.items()} == {
        program: {code} for program, code in WRONG_LINES.items()
    }


def test_the_wheel_is_marked_as_typed(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"meshfleet/py.typed", "meshfleet/client/__init__.py", "meshfleet/testing/__init__.py"} <= names
