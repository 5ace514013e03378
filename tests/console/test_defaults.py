"""Test that the wizard for a new job starts with the defaults of the service."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshfleet.rest.job_requests import Retry

PLAN = Path(__file__).parents[2] / "console" / "src" / "pages" / "jobs" / "new" / "plan" / "plan.svelte.ts"


@pytest.mark.rule("rest-128")
def test_the_wizard_starts_with_the_defaults_of_the_service() -> None:
    text = PLAN.read_text("utf-8")
    match = re.search(r'retry = \$state\(\{ max: "(.+?)", seconds: "(.+?)" \}\)', text)
    assert match is not None
    retry = Retry()
    assert [float(each) for each in match.groups()] == [retry.max, retry.backoff_seconds]
