"""Log on standard error: text, JSON, and priorities for the journal of systemd."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.row_tables import each_row

_SCRIPT = """
import logging, sys
from meshfleet.cli.log_output import log_to_terminal, set_log_level
log_to_terminal(logging.WARNING, sys.argv[1])
log = logging.getLogger("some.part")
log.info("hidden")
log.warning("one %s", "line\\u2028\\udc80")
try:
    raise ValueError("wrong")
except ValueError:
    log.exception("two\\nlines")
set_log_level(logging.DEBUG)
log.debug("now shown")
set_log_level(logging.ERROR)
log.warning("hidden again")
"""


def log(log_format: str, before: str) -> list[str]:
    """Run a program that logs, after a command of the shell, and return the lines of its standard error."""
    command = ["/bin/sh", "-c", f'{before}; exec "$0" -c "$1" {log_format}', sys.executable, _SCRIPT]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr.split("\n")[:-1]


_JOURNAL = 'export JOURNAL_STREAM="$(stat -Lc %d:%i /proc/self/fd/2)"'


@each_row("before", ["unset JOURNAL_STREAM", "export JOURNAL_STREAM=1:2", "export JOURNAL_STREAM=x"])
def test_text_has_times_and_no_priorities_outside_of_the_journal(before: str) -> None:
    lines = log("text", before)
    assert lines[0][:4].isdecimal()
    assert " WARNING one line" in lines[0]
    assert lines[1].endswith(" ERROR two")
    assert lines[-2:][0] == "ValueError: wrong"
    assert lines[-1].endswith(" DEBUG now shown")


def test_every_line_has_its_priority_in_the_journal() -> None:
    lines = log("text", _JOURNAL)
    assert lines[0].startswith("<4>WARNING one line")
    priorities = [line[:3] for line in lines]
    assert set(priorities) == {"<3>", "<4>", "<7>"}
    assert lines[-1] == "<7>DEBUG now shown"


@each_row(("before", "prefixes"), [("unset JOURNAL_STREAM", ["", "", ""]), (_JOURNAL, ["<4>", "<3>", "<7>"])])
def test_json_is_one_object_per_line(before: str, prefixes: list[str]) -> None:
    lines = log("json", before)
    records = [json.loads(line.removeprefix(prefix)) for line, prefix in zip(lines, prefixes, strict=True)]
    assert [each["level"] for each in records] == ["warning", "error", "debug"]
    assert [each["message"] for each in records] == ["one line\u2028\udc80", "two\nlines", "now shown"]
    assert {each["logger"] for each in records} == {"some.part"}
    assert records[1]["exception"].endswith("ValueError: wrong")
    assert ["exception" in each for each in records] == [False, True, False]
    assert all(each["time"].endswith("Z") for each in records)
