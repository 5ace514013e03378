"""Tests of the trail of a device, and of the order of names in its list."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.node import NODE

DEVICES = Path(__file__).parents[2] / "console" / "src" / "pages" / "sites" / "site" / "devices"

TRAIL_PROGRAM = """
import { joinTrail, listLines } from "SOURCE";
const format = (seconds) => new Date(seconds * 1000).toISOString();
const at = (seconds, floor = 0) => ({ x: seconds, y: 0, floor, time: format(seconds) });
const loaded = [at(0), at(60), at(120), at(180)];
const trail = joinTrail(loaded, [at(150), at(153), at(400), at(403), at(406, 1), at(409)], 59_000);
const join = (floor) => listLines(trail, floor).map(([from, to]) => [from.x, to.x]);
const trails = [trail, joinTrail(loaded, [], 150_000)].map((spots) => spots.map(({ x }) => x));
console.log(JSON.stringify({ trails, lines: [join(0), join(1)] }));
"""

ORDER_PROGRAM = """
import { NameOrder } from "SOURCE";
const list = (...names) =>
  new Map(names.map((name, index) => [`bmac-${index}`, { device: `bmac-${index}`, name }]));
const order = new NameOrder();
const first = order.sort(list("Cart 10", "Cart 2"));
const moved = order.sort(list("Cart 10", "Cart 2"));
const renamed = order.sort(list("Cart 1", "Cart 2"));
const more = order.sort(list("Cart 1", "Cart 2", "Arm"));
const names = [first, renamed, more].map((each) => each.map(({ name }) => name));
console.log(JSON.stringify({ names, isKept: moved === first }));
"""


def _run(program: str, module: str) -> dict[str, object]:
    """Run a program with a module of the console and return its output."""
    program = program.replace("SOURCE", (DEVICES / module).as_uri())
    result = subprocess.run(
        [NODE, "--input-type=module", "--eval", program], check=True, capture_output=True, text=True
    )
    output: dict[str, object] = json.loads(result.stdout)
    return output


def test_a_trail_ends_after_its_time_and_breaks_where_positions_are_missing() -> None:
    assert _run(TRAIL_PROGRAM, "trail.ts") == {
        "trails": [[60, 120, 150, 153, 400, 403, 406, 409], [180]],
        "lines": [[[60, 120], [120, 150], [150, 153], [400, 403]], []],
    }


def test_names_are_sorted_as_people_count_and_only_when_they_change() -> None:
    assert _run(ORDER_PROGRAM, "name-order.ts") == {
        "names": [["Cart 2", "Cart 10"], ["Cart 1", "Cart 2"], ["Arm", "Cart 1", "Cart 2"]],
        "isKept": True,
    }
