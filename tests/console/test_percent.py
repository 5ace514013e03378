"""Percentages as the console writes them: what they say beside a limit is true."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.node import NODE

SOURCE = Path(__file__).parents[2] / "console" / "src" / "text" / "percent.ts"

PROGRAM = """
import { formatPercentage, percentText, progressText, reachesPercent } from "SOURCE";
const rows = JSON.parse(process.argv[1]);
const said = rows.map(([part, whole, ...limits]) => [
  formatPercentage(part, whole, ...limits),
  ...limits.map((limit) => (reachesPercent(part, whole, limit) ? ">= " : "< ") + percentText(limit)),
]);
const progress = JSON.parse(process.argv[2]).map((row) => progressText(...row));
console.log(JSON.stringify({ said, progress }));
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
"""A count, of how many, and limits; the share as it is written, and on which side of each limit it is."""

PROGRESS = {(0, 0): "0 %", (0, 4): "< 1 %", (1, 10): "1 %", (99, 999): "99 %", (100, 1000): "100 %"}
"""The progress of a job and how many devices are finished, and how that is written."""


def test_a_share_is_written_on_its_own_side_of_every_limit() -> None:
    program = PROGRAM.replace("SOURCE", SOURCE.as_uri())
    asked = [json.dumps([row for row, _ in ROWS]), json.dumps(list(PROGRESS))]
    told = subprocess.run(
        [NODE, "--input-type=module", "--eval", program, *asked], check=True, capture_output=True, text=True
    )
    found = json.loads(told.stdout)
    wrong = [(row, said) for (row, wanted), said in zip(ROWS, found["said"], strict=True) if said != wanted]
    assert wrong == []
    assert dict(zip(PROGRESS, found["progress"], strict=True)) == PROGRESS
