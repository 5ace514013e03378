"""Invalid input and unusable outputs: error messages instead of tracebacks."""

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
NOT_TEXT = "\udcff"
"""Surrogate by which Python represents a byte on the command line that is not UTF-8."""


@each_row(
    "arguments",
    [
        ["devices", "rename", DEVICE, NOT_TEXT],
        ["devices", "list", "--name", NOT_TEXT],
        ["devices", "list", "--model", NOT_TEXT],
        ["devices", "list", "--label", NOT_TEXT],
        ["devices", "label", DEVICE, NOT_TEXT],
        ["devices", "label", NOT_TEXT, "label"],
        ["gateways", "add", "02005e00f001", "--name", NOT_TEXT],
        ["keys", "add", NOT_TEXT, "--role", "viewer"],
        ["keys", "remove", NOT_TEXT],
        ["requests", "show", NOT_TEXT],
        ["requests", NOT_TEXT],
        ["users", "add", NOT_TEXT, "--role", "viewer"],
        ["write", DEVICE, "tx-power", NOT_TEXT],
        ["write", DEVICE, NOT_TEXT, "1"],
        ["read", DEVICE, NOT_TEXT],
        ["login", "--url", NOT_TEXT, "--user", "ada", "--password", "x"],
        ["login", "--url", "http://127.0.0.1:1", "--user", "ada", "--password", NOT_TEXT],
        ["samples", DEVICE, "--from", "999999d"],
        ["samples", DEVICE, "--to", "999999d"],
    ],
)
def test_invalid_texts_and_times_exit_with_a_usage_error(admin: Shell, arguments: list[str]) -> None:
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
    failures = []
    for arguments, option in rows.items():
        result = admin(*arguments)
        message = result.stderr.splitlines()[-1] if result.stderr else ""
        if (result.exit_code, result.stdout) != (2, "") or option not in message:
            failures.append((arguments, result.exit_code, message))
    assert not failures


def test_a_misspelled_identifier_causes_a_hint(admin: Shell) -> None:
    hint = "battery-levl is not in the catalogue; did you mean battery-level?"
    missed = []
    for arguments in (
        ["read", DEVICE, "battery-levl"],
        ["write", DEVICE, "battery-levl", "1"],
        ["ack", DEVICE, "battery-levl", "--time", "2026-01-01T00:00:00Z"],
        ["samples", DEVICE, "--identifier", "battery-levl"],
        ["identifiers", "battery-levl"],
    ):
        message = admin(*arguments).stderr
        if "did you mean battery-level?" not in message:
            missed.append((arguments, message))
    assert not missed
    assert f"Hint: {hint}\n" in admin("samples", DEVICE, "--identifier", "battery-levl").stderr
    for known in ("battery-level", "8100", "beef", "nothing-like-it"):
        assert "did you mean" not in admin("samples", DEVICE, "--identifier", known).stderr


def test_secrets_that_are_not_text_are_reported_and_not_repeated(admin: Shell) -> None:
    secret = f"secret-secret{NOT_TEXT}"
    login = ["login", "--url", "http://127.0.0.1:1", "--user", "ada"]
    assert "is not Unicode text" in (
        message := admin.expect_failure(*login, code=2, MESHFLEET_PASSWORD=secret)
    )
    assert "secret-secret" not in message
    for variable in ("MESHFLEET_KEY", "MESHFLEET_PUBLIC_KEY"):
        variables = {variable: secret}
        message = admin("read", DEVICE, "8100", **variables).stderr
        assert message == f"Error: {variable}: is not Unicode text\n"


def test_the_message_about_a_mac_names_no_case() -> None:
    message = run_command("devices", "show", "CA5BDA1A000").stderr
    assert "is not 12 hex digits" in message


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_full_disk_is_reported(logged_out: Shell, form: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [MESHFLEET, "identifiers", *form],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, **logged_out.variables},
            text=True,
            check=False,
            timeout=TEST_TIMEOUT,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "Error: the output cannot be written: No space left on device\n",
    )


def test_a_closed_pipe_causes_no_message(logged_out: Shell) -> None:
    with subprocess.Popen(
        [MESHFLEET, "identifiers", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **logged_out.variables},
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


def test_completion_does_not_wait_for_a_nameserver(logged_out: Shell) -> None:
    logged_out.write_login('{"url": "http://fleet.example.org", "user": "ada", "token": "a.b.c"}')
    variables = {
        "_MESHFLEET_COMPLETE": "bash_complete",
        "COMP_WORDS": "meshfleet\nlabels\nremove\n",
        "COMP_CWORD": "3",
        "MESHFLEET_TAB_SECONDS": "0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SILENT_NAMESERVER],
        env={**os.environ, **logged_out.variables, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=TEST_TIMEOUT,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
