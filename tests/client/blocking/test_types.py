"""A type checker in strict mode accepts a right program, and rejects a wrong one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RIGHT = """
from datetime import UTC, datetime

from meshfleet.client import Device, Event, Fleet, Mesh, RequestAnswer, Role, check
from meshfleet.client import blocking


async def look(fleet: Fleet, mesh: Mesh) -> list[Device]:
    await fleet.users.add("me", "correct-horse", Role.VIEWER)
    answer: RequestAnswer = check(await fleet.requests.read("c0ffee000001", "8000", timeout=3))
    print(answer.value, check(await mesh.read("02005e000001", "c0ffee000001", "8000")).value)
    async for event in fleet.live(types=("report", "device"), ids=["c0ffee000001"]):
        one: Event = event
        print(one.data)
    return [each async for each in fleet.devices.list(labels=["a"], connected=True, sort="-id")]


def wait(fleet: blocking.Fleet, mesh: blocking.Mesh) -> list[Device]:
    answer: RequestAnswer = check(fleet.requests.write("c0ffee000001", "8000", "00", gateway=None))
    print(answer.status, mesh.apiversion("02005e000001").version)
    for sample in fleet.samples.list("c0ffee000001", kinds=["event"], since=datetime.now(UTC)):
        print(sample.value)
    for report in mesh.reports(gateway="02005e000001"):
        print(report.body)
    return list(fleet.devices.list(labels="a"))
"""

WRONG = [
    "async def f(fleet: Fleet) -> None:\n    fleet.devices.list(conected=True)",
    "async def f(fleet: Fleet) -> None:\n    await fleet.devices.rename('c0ffee000001')",
    "async def f(fleet: Fleet) -> None:\n    (await fleet.devices.show('c0ffee000001')).colour",
    "async def f(fleet: Fleet) -> None:\n    fleet.devices.show('c0ffee000001').id",
    "async def f(fleet: Fleet) -> None:\n    fleet.live(types=['reprot'])",
    "async def f(mesh: Mesh) -> None:\n    await mesh.read('02005e000001', '8000')",
    "def f(fleet: blocking.Fleet) -> None:\n    fleet.devices.list(sort='name')",
    "def f(fleet: blocking.Fleet) -> None:\n    fleet.devices.rename('c0ffee000001', 3)",
    "def f(fleet: blocking.Fleet) -> int:\n    return fleet.devices.show('c0ffee000001').friendly_name",
    "def f(fleet: blocking.Fleet) -> None:\n    fleet.requests.read('c0ffee000001', '8000', gatewy='x')",
    "def f(fleet: blocking.Fleet) -> None:\n    fleet.samples.list('c0ffee000001', kinds=['smell'])",
    "def f(mesh: blocking.Mesh) -> None:\n    mesh.write('02005e000001', 'c0ffee000001')",
]


def _check(folder: Path, *programs: str) -> dict[str, int]:
    """How many mistakes a type checker finds in each program."""
    files = [folder / f"program_{number}.py" for number in range(len(programs))]
    for file, program in zip(files, programs, strict=True):
        file.write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert not done.stderr, done.stderr
    found = [line.partition(":")[0] for line in done.stdout.splitlines() if ": error:" in line]
    return {file.name: sum(Path(each).name == file.name for each in found) for file in files}


@pytest.mark.skipif(sys.platform == "win32", reason="paths with a colon")
def test_a_right_program_is_accepted_and_each_wrong_one_is_not(tmp_path: Path) -> None:
    beginning = "from meshfleet.client import Fleet, Mesh, blocking\n\n\n"
    right, *wrong = _check(tmp_path, RIGHT, *(beginning + each + "\n" for each in WRONG)).values()
    assert right == 0
    assert all(wrong), wrong
