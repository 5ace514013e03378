"""Tests of job and wave names, which are shown in consoles and terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

INVISIBLE_NAMES = [
    "a\nb",
    "a\tb",
    "\x1b[2Jb",
    "a\x7f",
    "a\x00",
    "\u200b",
    "a\u200bb",
    "a\u202eb",
    "\ufeffa",
    "a\u00adb",
]
LINE_BREAK_NAMES = ["a\u2028b", "a\u2029b"]
BLANK_NAMES = [" ", "\u00a0\u3000"]


def _faults(env: JobEnvironment, **fields: Any) -> list[str]:
    response = env.post_job(env.firmware(), {"deviceIds": env.devices(1)}, **fields)
    assert response.status_code == 400, response.text
    return [each["field"] for each in response.json()["errors"]]


@pytest.mark.rule("rest-122")
@each_row("name", [*INVISIBLE_NAMES, *LINE_BREAK_NAMES, *BLANK_NAMES])
def test_a_name_with_invisible_characters_is_rejected(env: JobEnvironment, name: str) -> None:
    before = env.count_rows()
    assert _faults(env, name=name) == ["name"]
    assert _faults(env, waves=[{"count": 1}, {"name": name, "percent": 50}]) == ["waves[1].name"]
    assert _faults(env, name=name, dryRun=True) == ["name"]
    assert env.count_rows() == before


@each_row("name", ["x", "Büro / lobby ☕", "固件 3.4.2", "بوابة", "a  b", "e\u0301"])
def test_a_name_in_any_script_is_stored_unchanged(env: JobEnvironment, name: str) -> None:
    job = env.create_job(env.firmware(), env.devices(1), name=name, waves=[{"name": name, "count": 1}])
    assert env.get_job(job["id"])["name"] == name
    assert env.get_job(job["id"])["waves"][0]["name"] == name
