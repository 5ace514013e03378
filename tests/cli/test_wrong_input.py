"""What no text is, or too much of it, and outputs that are full: a sentence each, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.programs import MESHFLEET, TEST_TIMEOUT, run_command
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.cli.shell import Shell

DEVICE = "ca5bda1a0002"
NO_TEXT = "\udcff"
"""What Python makes of a byte on the command line that is no UTF-8."""


@each_row(
    "arguments",
    [
        ["devices", "rename", DEVICE, NO_TEXT],
        ["devices", "list", "--name", NO_TEXT],
        ["devices", "list", "--model", NO_TEXT],
        ["devices", "list", "--label", NO_TEXT],
        ["devices", "label", DEVICE, NO_TEXT],
        ["devices", "label", NO_TEXT, "label"],
        ["gateways", "add", "02005e00f001", "--name", NO_TEXT],
        ["keys", "add", NO_TEXT, "--role", "viewer"],
        ["keys", "remove", NO_TEXT],
        ["requests", "show", NO_TEXT],
        ["requests", NO_TEXT],
        ["users", "add", NO_TEXT, "--role", "viewer"],
        ["write", DEVICE, "tx-power", NO_TEXT],
        ["write", DEVICE, NO_TEXT, "1"],
        ["read", DEVICE, NO_TEXT],
        ["login", "--url", NO_TEXT, "--user", "ada", "--password", "x"],
        ["login", "--url", "http://127.0.0.1:1", "--user", "ada", "--password", NO_TEXT],
        ["samples", DEVICE, "--from", "999999d"],
        ["samples", DEVICE, "--to", "999999d"],
    ],
)
def test_what_is_no_text_or_no_time_is_wrong_usage(admin: Shell, arguments: list[str]) -> None:
    result = admin(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert "Error: " in result.stderr


@pytest.mark.rule("rest-177")
def test_a_wrong_value_is_wrong_usage_that_names_the_option(admin: Shell) -> None:
    create = ["jobs", "create", "x", "--firmware", "fw-0123456789abcdef"]
    rows = {
        ("devices", "list", "--model", "zz"): "'--model'",
        ("devices", "list", "--firmware", "new"): "'--firmware'",
        ("devices", "list", "--hardware", "new", "--model", "zz"): "'--hardware'",
        ("firmware", "list", "--version", "new"): "'--version'",
        ("firmware", "list", "--model", "zz"): "'--model'",
        (*create, "--all"): "'--firmware'",
        (*create, "--all", "--soak", "1e9"): "'--soak'",
        (*create, "--all", "--deadline", "2020-01-01T00:00:00Z"): "'--deadline'",
        (*create, "--all", "--wave", "101%"): "'--wave'",
        (*create, "--all", "--backoff", "1e9"): "'--backoff'",
    }
    wrong = []
    for arguments, option in rows.items():
        result = admin(*arguments)
        said = result.stderr.splitlines()[-1] if result.stderr else ""
        if (result.exit_code, result.stdout) != (2, "") or option not in said:
            wrong.append((arguments, result.exit_code, said))
    assert not wrong


def test_a_misspelt_identifier_is_hinted_at(admin: Shell) -> None:
    hint = "battery-levl is not in the catalogue; did you mean battery-level?"
    missed = []
    for arguments in (
        ["read", DEVICE, "battery-levl"],
        ["write", DEVICE, "battery-levl", "1"],
        ["ack", DEVICE, "battery-levl", "--time", "2026-01-01T00:00:00Z"],
        ["samples", DEVICE, "--identifier", "battery-levl"],
        ["identifiers", "battery-levl"],
    ):
        said = admin(*arguments).stderr
        if "did you mean battery-level?" not in said:
            missed.append((arguments, said))
    assert not missed
    assert f"Hint: {hint}\n" in admin("samples", DEVICE, "--identifier", "battery-levl").stderr
    for known in ("battery-level", "8100", "beef", "nothing-like-it"):
        assert "did you mean" not in admin("samples", DEVICE, "--identifier", known).stderr


def test_secrets_that_are_no_text_are_told_and_not_repeated(admin: Shell) -> None:
    secret = f"secret-secret{NO_TEXT}"
    login = ["login", "--url", "http://127.0.0.1:1", "--user", "ada"]
    assert "is not Unicode text" in (said := admin.expect_failure(*login, code=2, MESHFLEET_PASSWORD=secret))
    assert "secret-secret" not in said
    for variable in ("MESHFLEET_KEY", "MESHFLEET_PUBLIC_KEY"):
        given = {variable: secret}
        said = admin("read", DEVICE, "8100", **given).stderr
        assert said == f"Error: {variable}: is not Unicode text\n"


def test_a_mac_is_told_to_have_hex_digits_of_either_case() -> None:
    said = run_command("devices", "show", "CA5BDA1A000").stderr
    assert "is not 12 hex digits" in said


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["people", "programs"])
def test_an_output_that_is_full_is_told(nobody: Shell, form: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [MESHFLEET, "identifiers", *form],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, **nobody.variables},
            text=True,
            check=False,
            timeout=TEST_TIMEOUT,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "Error: the output cannot be written: No space left on device\n",
    )


def test_who_reads_no_further_is_told_nothing(nobody: Shell) -> None:
    with subprocess.Popen(
        [MESHFLEET, "identifiers", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **nobody.variables},
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == b""
        program.wait(TEST_TIMEOUT)


SILENT_NAMESERVER = """
import socket, threading
socket.getaddrinfo = lambda *_, **__: threading.Event().wait()
from meshfleet.cli import main
main(prog_name="meshfleet")
"""


def test_the_tab_key_waits_for_no_nameserver(nobody: Shell) -> None:
    nobody.write_login('{"url": "http://fleet.example.org", "user": "ada", "token": "a.b.c"}')
    asked = {
        "_MESHFLEET_COMPLETE": "bash_complete",
        "COMP_WORDS": "meshfleet\nlabels\nremove\n",
        "COMP_CWORD": "3",
        "MESHFLEET_TAB_SECONDS": "0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SILENT_NAMESERVER],
        env={**os.environ, **nobody.variables, **asked},
        capture_output=True,
        text=True,
        check=True,
        timeout=TEST_TIMEOUT,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
