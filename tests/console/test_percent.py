"""Tests of the percentages of the console: rounding never moves one across a limit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.node import NODE

SOURCE = Path(__file__).parents[2] / "console" / "src" / "text" / "percent.ts"

PROGRAM = """
import { formatPercentage, percentText, progressText, reachesPercent } from "SOURCE";
const rows = JSON.parse(process.argv[1]);
const shares = rows.map(([part, whole, ...limits]) => [
  formatPercentage(part, whole, ...limits),
  ...limits.map((limit) => (reachesPercent(part, whole, limit) ? ">= " : "< ") + percentText(limit)),
]);
const progress = JSON.parse(process.argv[2]).map((row) => progressText(...row));
console.log(JSON.stringify({ shares, progress }));
"""

ROWS: list[tuple[list[float], list[str]]] = [
    ([18, 19, 95], ["94.7 %", "< 95 %"]),
    ([19, 20, 95], ["95 %", ">= 95 %"]),
    ([947, 1000, 95], ["94.7 %", "< 95 %"]),
    ([9496, 10000, 95], ["94.96 %", "< 95 %"]),
    ([94_996, 100_000, 95], ["94.996 %", "< 95 %"]),
    ([9504, 10000, 95], ["95.04 %", ">= 95 %"]),
    ([96, 100, 95], ["96 %", ">= 95 %"]),
    ([954, 1000, 95.3], ["95.4 %", ">= 95.3 %"]),
    ([33, 1500, 2.2], ["2.2 %", ">= 2.2 %"]),
    ([1, 21, 5, 4.7], ["4.8 %", "< 5 %", ">= 4.7 %"]),
    ([9996, 10000, 99.9999], ["99.96 %", "< 99.9999 %"]),
    ([996, 1000, 50], ["99.6 %", ">= 50 %"]),
    ([4, 1000, 50], ["0.4 %", "< 50 %"]),
    ([0, 5, 20], ["0 %", "< 20 %"]),
    ([5, 5, 100], ["100 %", ">= 100 %"]),
    ([0, 0, 20], ["0 %", ">= 20 %"]),
    ([996, 1000], ["> 99 %"]),
    ([4, 1000], ["< 1 %"]),
    ([1, 3], ["33 %"]),
    ([0, 3], ["0 %"]),
    ([3, 3], ["100 %"]),
]
"""Part, whole, and limits; the expected text, and the expected side of each limit."""

PROGRESS = {(0, 0): "0 %", (0, 4): "< 1 %", (1, 10): "1 %", (99, 999): "99 %", (100, 1000): "100 %"}
"""Finished devices and all devices of a job, and the expected text of its progress."""


def test_a_percentage_is_on_the_right_side_of_every_limit() -> None:
    program = PROGRAM.replace("SOURCE", SOURCE.as_uri())
    arguments = [json.dumps([row for row, _ in ROWS]), json.dumps(list(PROGRESS))]
    result = subprocess.run(
        [NODE, "--input-type=module", "--eval", program, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(result.stdout)
    wrong = [
        (row, actual)
        for (row, expected), actual in zip(ROWS, found["shares"], strict=True)
        if actual != expected
    ]
    assert wrong == []
    assert dict(zip(PROGRESS, found["progress"], strict=True)) == PROGRESS
