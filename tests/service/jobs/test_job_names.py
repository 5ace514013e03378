"""Names of jobs and waves are shown to people, in consoles and on terminals: all of them can be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

UNSEEN = [
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
LINES = ["a\u2028b", "a\u2029b"]
EMPTY = [" ", "\u00a0\u3000"]


def _faults(shop: JobEnvironment, **order: Any) -> list[str]:
    answer = shop.post_job(shop.firmware(), {"deviceIds": shop.devices(1)}, **order)
    assert answer.status_code == 400, answer.text
    return [each["field"] for each in answer.json()["errors"]]


@pytest.mark.rule("rest-122")
@each_row("name", [*UNSEEN, *LINES, *EMPTY])
def test_a_name_with_characters_that_nobody_sees_is_refused(shop: JobEnvironment, name: str) -> None:
    before = shop.count_rows()
    assert _faults(shop, name=name) == ["name"]
    assert _faults(shop, waves=[{"count": 1}, {"name": name, "percent": 50}]) == ["waves[1].name"]
    assert _faults(shop, name=name, dryRun=True) == ["name"]
    assert shop.count_rows() == before


@each_row("name", ["x", "Büro / lobby ☕", "固件 3.4.2", "بوابة", "a  b", "e\u0301"])
def test_a_name_in_any_script_is_kept_as_it_is(shop: JobEnvironment, name: str) -> None:
    job = shop.create_job(shop.firmware(), shop.devices(1), name=name, waves=[{"name": name, "count": 1}])
    assert shop.get_job(job["id"])["name"] == name
    assert shop.get_job(job["id"])["waves"][0]["name"] == name
