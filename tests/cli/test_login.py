"""`meshfleet login` and `logout`, and the login file."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from meshfleet.cli.service_access import open_fleet
from meshfleet.cli.stored_login import StoredLogin, read_login, save_login, save_renewed_token
from tests.cli.programs import TEST_TIMEOUT, Program
from tests.cli.shell import create_logged_in_shell, run_at_terminal
from tests.eventually import eventually
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.testing import RunningFleet
    from tests.cli.shell import Shell

PASSWORD = "correct-horse-battery"  # noqa: S105 # only for this test


@pytest.fixture
def admin(tmp_path: Path, service: RunningFleet) -> Shell:
    """Create a shell with its own login, so that tests can log out."""
    return create_logged_in_shell(tmp_path / "home", service)


def log_in(shell: Shell, service: RunningFleet, *more: str, **variables: str) -> str:
    return shell.text("login", "--url", service.url, "--user", "ADMIN", *more, **variables)


# --- Stored login ---


def test_a_login_is_stored_privately_and_without_the_password(
    logged_out: Shell, service: RunningFleet
) -> None:
    with logged_out.start(
        *("login", "--url", f"{service.url}/", "--user", service.user),
        umask="0",
        MESHFLEET_PASSWORD=service.password,
    ) as program:
        code, output, errors = program.wait_for_exit()
    assert (code, errors) == (0, "")
    assert output == f"Logged in to {service.url} as admin (admin).\n"
    stored = json.loads(logged_out.login.read_text())
    assert {*stored} == {"url", "user", "token"}
    assert (stored["url"], stored["user"]) == (service.url, "admin")
    assert service.password not in logged_out.login.read_text() + output
    assert logged_out.login.stat().st_mode & 0o777 == 0o600
    assert logged_out.login.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(logged_out.login.parent) == ["login.json"]  # noqa: PTH208 # includes hidden files


@pytest.mark.rule("auth-32")
@each_row("source", ["flag", "variable", "pipe"])
def test_a_password_may_come_from_several_sources(
    logged_out: Shell, service: RunningFleet, source: str
) -> None:
    logged_out.login.unlink(missing_ok=True)  # of the previous row
    match source:
        case "flag":
            log_in(logged_out, service, "--password", service.password)
        case "variable":
            log_in(logged_out, service, MESHFLEET_PASSWORD=service.password)
        case "pipe":
            log_in(logged_out, service, stdin=f"{service.password}\n")
    assert service.gateways[0].mac in [each["mac"] for each in logged_out.json_lines("gateways", "list")]


def test_a_password_is_prompted_for_at_a_terminal_and_not_shown(
    logged_out: Shell, service: RunningFleet
) -> None:
    command = ["login", "--url", service.url, "--user", "admin"]
    shown, code = run_at_terminal(logged_out, *command, typed=f"{service.password}\n")
    assert code == 0
    assert "Password: " in shown
    assert service.password not in shown
    assert logged_out.login.exists()


@each_row("options", [["--url", "URL"], ["--user", "ada"], ["--url", "URL", "--user", "ada"]])
def test_incomplete_options_are_wrong_usage(logged_out: Shell, options: list[str]) -> None:
    logged_out.expect_failure("login", *options, code=2)
    assert not logged_out.login.exists()


@each_row("url", ["ftp://x", "http://", "http://ada:secret-secret@127.0.0.1:1", "nonsense"])
def test_an_invalid_url_is_reported_without_repeating_it(logged_out: Shell, url: str) -> None:
    message = logged_out.expect_failure("login", "--url", url, "--user", "ada", "--password", "correct-horse")
    assert "url: " in message
    assert "secret-secret" not in message


def test_a_wrong_password_is_refused_and_nothing_is_stored(logged_out: Shell, service: RunningFleet) -> None:
    message = logged_out.expect_failure(
        "login", "--url", service.url, "--user", "nemo", "--password", "wrong-horse-battery"
    )
    assert "wrong-horse-battery" not in message
    assert not logged_out.login.exists()


def test_an_unreachable_service_is_reported(logged_out: Shell) -> None:
    message = logged_out.expect_failure(
        "login", "--url", "http://127.0.0.1:1", "--user", "ada", "--password", "x" * 10
    )
    assert "127.0.0.1:1 cannot be reached" in message


def test_the_json_result_names_the_user(logged_out: Shell, service: RunningFleet) -> None:
    result = logged_out.json(
        "login", "--url", service.url, "--user", "admin", MESHFLEET_PASSWORD=service.password
    )
    assert result == {"url": service.url, "username": "admin", "role": "admin", "file": str(logged_out.login)}


def test_a_directory_that_cannot_be_written_is_reported(
    logged_out: Shell, service: RunningFleet, tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("not a directory")
    command = ["login", "--url", service.url, "--user", "admin", "--password", service.password]
    assert "the login cannot be saved to" in logged_out.expect_failure(*command)


# --- Missing and unusable logins ---


def test_without_a_login_the_error_says_what_to_do(logged_out: Shell) -> None:
    assert "not logged in: run meshfleet login --url URL --user NAME" in logged_out.expect_failure(
        "devices", "list"
    )


@each_row("content", ["", "{}", "[1]", '{"url": 1}', "\udcff"])
def test_an_invalid_login_file_is_reported(logged_out: Shell, content: str) -> None:
    logged_out.write_login(content)
    assert "is not a valid login file: run meshfleet login" in logged_out.expect_failure("devices", "list")
    assert "the stored login is deleted, but no service was notified" in logged_out.expect_failure("logout")
    assert not logged_out.login.exists()


def test_a_pipe_instead_of_the_login_file_is_refused(logged_out: Shell) -> None:
    logged_out.login.parent.mkdir(parents=True)
    os.mkfifo(logged_out.login, 0o600)
    with logged_out.start("devices", "list") as program:
        code, output, errors = program.wait_for_exit()
    assert (code, output) == (1, "")
    assert "is not a regular file" in errors


@each_row("mode", [0o644, 0o606, 0o620])
def test_a_login_file_that_others_can_access_is_used_only_to_log_out(
    tmp_path: Path, service: RunningFleet, mode: int
) -> None:
    admin = create_logged_in_shell(tmp_path / f"{mode:o}", service)
    token = json.loads(admin.login.read_text())["token"]
    admin.login.chmod(mode)
    message = admin.expect_failure("devices", "list")
    assert re.search(r"other users can access \S+: run meshfleet login again", message)
    admin.text("logout")
    script = {"MESHFLEET_URL": service.url, "MESHFLEET_TOKEN": token}
    assert "rejects MESHFLEET_TOKEN" in admin.expect_failure("devices", "list", **script)


def test_the_mode_of_a_linked_directory_is_unchanged(
    logged_out: Shell, service: RunningFleet, tmp_path: Path
) -> None:
    (tmp_path / "linked").mkdir(0o755)
    logged_out.home.mkdir()
    logged_out.login.parent.symlink_to(tmp_path / "linked")
    log_in(logged_out, service, MESHFLEET_PASSWORD=service.password)
    assert (tmp_path / "linked").stat().st_mode & 0o777 == 0o755
    assert logged_out.login.stat().st_mode & 0o777 == 0o600


def test_an_expired_login_is_reported_with_what_to_do(admin: Shell, service: RunningFleet) -> None:
    stored = json.loads(admin.login.read_text())
    admin.login.write_text(json.dumps({**stored, "token": stored["token"][:-4] + "AAAA"}))
    message = admin.expect_failure("devices", "list")
    assert (
        f"the login to {service.url} has expired: run meshfleet login --url {service.url} --user admin"
        in message
    )
    assert stored["token"][:20] not in message


def test_the_suggested_command_is_quoted_for_the_shell(logged_out: Shell, service: RunningFleet) -> None:
    logged_out.write_login(json.dumps({"url": service.url, "user": "a;b \x1b[2J", "token": "a.b.c"}))
    message = logged_out.expect_failure("devices", "list")
    assert message.endswith("--user 'a;b \ufffd[2J'\n")


# --- Logout ---


def test_a_logout_revokes_the_token_and_deletes_the_file(admin: Shell, service: RunningFleet) -> None:
    token = json.loads(admin.login.read_text())["token"]
    assert admin.text("logout") == f"Logged out of {service.url}.\n"
    assert not admin.login.exists()
    message = admin.expect_failure("devices", "list", MESHFLEET_URL=service.url, MESHFLEET_TOKEN=token)
    assert f"{service.url} rejects MESHFLEET_TOKEN" in message
    assert token not in message


def test_a_second_logout_does_nothing(admin: Shell) -> None:
    assert admin.json("logout")["loggedOut"]
    assert admin.json("logout") == {"loggedOut": False}


def test_a_logout_without_the_service_still_deletes_the_token(logged_out: Shell) -> None:
    logged_out.write_login('{"url": "http://127.0.0.1:1", "user": "ada", "token": "a.b.c"}')
    assert "the service was not notified" in logged_out.expect_failure("logout")
    assert not logged_out.login.exists()


# --- Scripts ---


def test_an_api_key_in_the_environment_overrides_the_login(admin: Shell, service: RunningFleet) -> None:
    key = admin.json("keys", "add", "viewer for a script", "--role", "viewer")["key"]
    script = {"MESHFLEET_URL": service.url, "MESHFLEET_TOKEN": key}
    assert admin.json_lines("devices", "list", **script)
    assert "viewer" in admin.expect_failure("users", "list", **script)


def test_a_token_without_a_service_is_wrong_usage(admin: Shell) -> None:
    admin.expect_failure("devices", "list", code=2, MESHFLEET_TOKEN="x")  # noqa: S106 # not a real secret


def test_a_login_is_not_used_for_another_service(admin: Shell) -> None:
    message = admin.expect_failure("devices", "list", MESHFLEET_URL="http://127.0.0.1:1")
    assert "not logged in to http://127.0.0.1:1" in message


def test_a_password_in_a_url_is_not_repeated(logged_out: Shell) -> None:
    for token in ("", "x"):
        address = "http://ada:secret-secret@h"
        message = logged_out.expect_failure("devices", "list", MESHFLEET_URL=address, MESHFLEET_TOKEN=token)
        assert "must not contain a user name or password" in message
        assert "secret-secret" not in message


def test_a_script_names_the_trusted_authorities_in_a_variable(logged_out: Shell, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    command = ["serve", "--json", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    command += ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with Program(*command, MESHFLEET_ADMIN_PASSWORD=PASSWORD) as service:
        trust = {"MESHFLEET_TLS_CA": str(tmp_path / "authority.pem")}
        address = json.loads(service.read_line())["url"]
        command = ["login", "--url", address, "--user", "admin", "--password", PASSWORD]
        assert "certificate" in logged_out.expect_failure(*command)
        logged_out.text(*command, **trust)
        key = logged_out.json("keys", "add", "a script", "--role", "viewer")["key"]
        script = {"MESHFLEET_URL": address, "MESHFLEET_TOKEN": key}
        assert "certificate" in logged_out.expect_failure("devices", "list", **script)
        assert logged_out.json_lines("devices", "list", **script, **trust) == []
        missing = str(tmp_path / "missing.pem")
        assert "missing.pem" in logged_out.expect_failure(
            "devices", "list", **script, MESHFLEET_TLS_CA=missing
        )


# --- Renewed tokens ---

ADA = StoredLogin(url="http://127.0.0.1:1", user="ada", token="first")  # noqa: S106 # not a real secret


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_a_renewed_token_is_saved(home: Path) -> None:
    save_login(ADA)
    renewed = save_renewed_token(ADA, "second")
    assert read_login() == renewed
    assert "second" in (home / "meshfleet" / "login.json").read_text()


@pytest.mark.usefixtures("home")
def test_a_renewed_token_does_not_replace_a_later_logout_or_login() -> None:
    save_renewed_token(ADA, "second")
    assert read_login() is None
    other = StoredLogin(url="http://127.0.0.1:1", user="bob", token="his")  # noqa: S106 # not a real secret
    save_login(other)
    save_renewed_token(ADA, "second")
    assert read_login() == other


def test_a_renewed_token_waits_for_a_concurrent_logout(home: Path) -> None:
    save_login(ADA)
    lock = os.open(home / "meshfleet", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with ThreadPoolExecutor() as pool:
        renewing = pool.submit(save_renewed_token, ADA, "second")
        waiting = re.compile(rf"-> FLOCK .* {os.getpid()} ")
        eventually(lambda: renewing.done() or waiting.search(Path("/proc/locks").read_text()))
        assert not renewing.done()
        (home / "meshfleet" / "login.json").unlink()
        os.close(lock)
        renewing.result(TEST_TIMEOUT)
    assert read_login() is None


def test_a_token_renewed_during_a_command_is_saved(admin: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def renew() -> None:
        async with open_fleet() as fleet:
            await fleet._credentials.renew()  # noqa: SLF001 # as the SDK does after 25 minutes

    first = json.loads(admin.login.read_text())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(admin.home))
    asyncio.run(renew())
    second = json.loads(admin.login.read_text())
    assert second["token"] != first["token"]
    assert {**second, "token": first["token"]} == first
    assert admin.login.stat().st_mode & 0o777 == 0o600
    assert admin.json_lines("devices", "list")


def test_a_login_does_not_show_its_token() -> None:
    assert "first" not in repr(ADA)


@pytest.mark.usefixtures("home")
def test_concurrent_readers_find_a_complete_login() -> None:
    save_login(ADA)
    with ThreadPoolExecutor() as pool:
        writing = [pool.submit(save_login, ADA) for _ in range(50)]
        while not all(each.done() for each in writing):
            assert read_login() == ADA
        assert [each.result() for each in writing] == [None] * 50
