from __future__ import annotations

import pytest

from meshfleet.cli.job_output import print_dry_run
from meshfleet.client import DryRun
from tests.row_tables import each_row

OFFLINE = "2 of these are offline now, and would wait until they are back."
BUSY = "3 of these are in another job that is not over with them."


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
    ("offline", "busy", "told"), [(0, 0, []), (2, 0, [OFFLINE]), (0, 3, [BUSY]), (2, 3, [OFFLINE, BUSY])]
)
def test_a_dry_run_says_who_would_have_to_wait(
    capsys: pytest.CaptureFixture[str], offline: int, busy: int, told: list[str]
) -> None:
    print_dry_run(_dry_run(offline=offline, busy=busy))
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "9 of 9 devices would be updated, 9 by download. It is likely to take 5 minutes."
    assert others == told


def test_a_dry_run_that_takes_some_time_is_not_said_to_take_none(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        0.4: "less than a minute",
        1.0: "1 minute",
        1.6: "2 minutes",
        119.0: "119 minutes",
        150.0: "2.5 hours",
    }
    for minutes in rows:
        print_dry_run(_dry_run(minutes=minutes))
    said = [line.partition("likely to take ")[2] for line in capsys.readouterr().out.splitlines()]
    assert dict(zip(rows, said, strict=True)) == {minutes: f"{text}." for minutes, text in rows.items()}
