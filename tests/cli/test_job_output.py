"""Text output of dry runs."""

from __future__ import annotations

import pytest

from meshfleet.cli.job_output import print_dry_run
from meshfleet.client import DryRun
from tests.row_tables import each_row

OFFLINE = "2 of these are offline now, and would wait until they reconnect."
BUSY = "3 of these are still being updated by another job."


def _dry_run(*, offline: int = 0, busy: int = 0, minutes: float = 5.0) -> DryRun:
    return DryRun(
        targets=9,
        eligible=9,
        skipped=0,
        offline=offline,
        busy=busy,
        refusals=[],
        methods={"download": 9},
        waves=[],
        device_ids=[],
        estimated_minutes=minutes,
    )


@pytest.mark.rule("rest-212")
@each_row(
    ("offline", "busy", "lines"), [(0, 0, []), (2, 0, [OFFLINE]), (0, 3, [BUSY]), (2, 3, [OFFLINE, BUSY])]
)
def test_a_dry_run_counts_offline_and_busy_devices(
    capsys: pytest.CaptureFixture[str], offline: int, busy: int, lines: list[str]
) -> None:
    print_dry_run(_dry_run(offline=offline, busy=busy))
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "9 of 9 devices would be updated, 9 by download. Estimated duration: 5 minutes."
    assert others == lines


def test_an_estimated_duration_is_never_zero(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        0.4: "less than a minute",
        1.0: "1 minute",
        1.6: "2 minutes",
        119.0: "119 minutes",
        150.0: "2.5 hours",
    }
    for minutes in rows:
        print_dry_run(_dry_run(minutes=minutes))
    durations = [line.partition("Estimated duration: ")[2] for line in capsys.readouterr().out.splitlines()]
    assert dict(zip(rows, durations, strict=True)) == {minutes: f"{text}." for minutes, text in rows.items()}
