"""Logging in, and what is kept of it."""

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

PASSWORD = "correct-horse-battery"  # noqa: S105 # of nobody


@pytest.fixture
def admin(tmp_path: Path, place: RunningFleet) -> Shell:
    """Somebody with a login of their own, which can be ended."""
    return create_logged_in_shell(tmp_path / "home", place)


def log_in(shell: Shell, place: RunningFleet, *more: str, **given: str) -> str:
    return shell.text("login", "--url", place.url, "--user", "ADMIN", *more, **given)


# --- What is kept ---


def test_a_login_is_kept_without_the_password_for_its_owner_alone(nobody: Shell, place: RunningFleet) -> None:
    with nobody.start(
        *("login", "--url", f"{place.url}/", "--user", place.user),
        umask="0",
        MESHFLEET_PASSWORD=place.password,
    ) as program:
        code, said, errors = program.wait_for_exit()
    assert (code, errors) == (0, "")
    assert said == f"Logged in at {place.url} as admin (admin).\n"
    kept = json.loads(nobody.login.read_text())
    assert {*kept} == {"url", "user", "token"}
    assert (kept["url"], kept["user"]) == (place.url, "admin")
    assert place.password not in nobody.login.read_text() + said
    assert nobody.login.stat().st_mode & 0o777 == 0o600
    assert nobody.login.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(nobody.login.parent) == ["login.json"]  # noqa: PTH208 # hidden ones too


@pytest.mark.rule("auth-32")
@each_row("way", ["flag", "variable", "pipe"])
def test_a_password_may_come_in_several_ways(nobody: Shell, place: RunningFleet, way: str) -> None:
    nobody.login.unlink(missing_ok=True)  # of the row before
    match way:
        case "flag":
            log_in(nobody, place, "--password", place.password)
        case "variable":
            log_in(nobody, place, MESHFLEET_PASSWORD=place.password)
        case "pipe":
            log_in(nobody, place, stdin=f"{place.password}\n")
    assert place.gateways[0].mac in [each["mac"] for each in nobody.json_lines("gateways", "list")]


def test_a_password_is_asked_for_at_a_terminal_and_not_shown(nobody: Shell, place: RunningFleet) -> None:
    asked = ["login", "--url", place.url, "--user", "admin"]
    shown, code = run_at_terminal(nobody, *asked, typed=f"{place.password}\n")
    assert code == 0
    assert "Password: " in shown
    assert place.password not in shown
    assert nobody.login.exists()


@each_row("given", [["--url", "URL"], ["--user", "ada"], ["--url", "URL", "--user", "ada"]])
def test_without_all_that_is_needed_it_is_wrong_usage(nobody: Shell, given: list[str]) -> None:
    nobody.expect_failure("login", *given, code=2)
    assert not nobody.login.exists()


@each_row("url", ["ftp://x", "http://", "http://ada:secret-secret@127.0.0.1:1", "nonsense"])
def test_an_address_that_is_none_is_told_without_repeating_it(nobody: Shell, url: str) -> None:
    said = nobody.expect_failure("login", "--url", url, "--user", "ada", "--password", "correct-horse")
    assert "url: " in said
    assert "secret-secret" not in said


def test_a_wrong_password_is_refused_and_keeps_nothing(nobody: Shell, place: RunningFleet) -> None:
    said = nobody.expect_failure(
        "login", "--url", place.url, "--user", "nemo", "--password", "wrong-horse-battery"
    )
    assert "wrong-horse-battery" not in said
    assert not nobody.login.exists()


def test_a_service_that_is_not_there_is_told(nobody: Shell) -> None:
    said = nobody.expect_failure(
        "login", "--url", "http://127.0.0.1:1", "--user", "ada", "--password", "x" * 10
    )
    assert "127.0.0.1:1 cannot be reached" in said


def test_programs_are_told_who_is_logged_in(nobody: Shell, place: RunningFleet) -> None:
    told = nobody.json("login", "--url", place.url, "--user", "admin", MESHFLEET_PASSWORD=place.password)
    assert told == {"url": place.url, "username": "admin", "role": "admin", "file": str(nobody.login)}


def test_a_folder_that_cannot_be_written_is_told(nobody: Shell, place: RunningFleet, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    given = ["login", "--url", place.url, "--user", "admin", "--password", place.password]
    assert "the login cannot be kept in" in nobody.expect_failure(*given)


# --- Who is not logged in ---


def test_without_a_login_one_is_told_what_to_do(nobody: Shell) -> None:
    assert "not logged in: run meshfleet login --url URL --user NAME" in nobody.expect_failure(
        "devices", "list"
    )


@each_row("content", ["", "{}", "[1]", '{"url": 1}', "\udcff"])
def test_a_file_that_is_no_login_is_told(nobody: Shell, content: str) -> None:
    nobody.write_login(content)
    assert "is not a login: run meshfleet login" in nobody.expect_failure("devices", "list")
    assert "the login is removed here, but no service was told" in nobody.expect_failure("logout")
    assert not nobody.login.exists()


def test_what_is_no_file_is_not_waited_for(nobody: Shell) -> None:
    nobody.login.parent.mkdir(parents=True)
    os.mkfifo(nobody.login, 0o600)
    with nobody.start("devices", "list") as program:
        code, said, errors = program.wait_for_exit()
    assert (code, said) == (1, "")
    assert "is not a file" in errors


@each_row("mode", [0o644, 0o606, 0o620])
def test_a_login_that_is_open_to_others_is_not_used_but_ended(
    tmp_path: Path, place: RunningFleet, mode: int
) -> None:
    admin = create_logged_in_shell(tmp_path / f"{mode:o}", place)
    token = json.loads(admin.login.read_text())["token"]
    admin.login.chmod(mode)
    assert "is open to others: run meshfleet login again" in admin.expect_failure("devices", "list")
    admin.text("logout")
    script = {"MESHFLEET_URL": place.url, "MESHFLEET_TOKEN": token}
    assert "does not take MESHFLEET_TOKEN" in admin.expect_failure("devices", "list", **script)


def test_a_folder_that_a_link_leads_to_stays_as_it_is(
    nobody: Shell, place: RunningFleet, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir(0o755)
    nobody.home.mkdir()
    nobody.login.parent.symlink_to(tmp_path / "mine")
    log_in(nobody, place, MESHFLEET_PASSWORD=place.password)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o755
    assert nobody.login.stat().st_mode & 0o777 == 0o600


def test_a_login_that_does_not_hold_is_told_with_what_to_do(admin: Shell, place: RunningFleet) -> None:
    kept = json.loads(admin.login.read_text())
    admin.login.write_text(json.dumps({**kept, "token": kept["token"][:-4] + "AAAA"}))
    said = admin.expect_failure("devices", "list")
    assert (
        f"not logged in at {place.url} any more: run meshfleet login --url {place.url} --user admin" in said
    )
    assert kept["token"][:20] not in said


def test_what_to_do_is_told_so_that_it_can_be_copied(nobody: Shell, place: RunningFleet) -> None:
    nobody.write_login(json.dumps({"url": place.url, "user": "a;b \x1b[2J", "token": "a.b.c"}))
    said = nobody.expect_failure("devices", "list")
    assert said.endswith("--user 'a;b \ufffd[2J'\n")


# --- The end of it ---


def test_a_logout_ends_the_login_at_the_service_and_here(admin: Shell, place: RunningFleet) -> None:
    token = json.loads(admin.login.read_text())["token"]
    assert admin.text("logout") == f"Logged out at {place.url}.\n"
    assert not admin.login.exists()
    said = admin.expect_failure("devices", "list", MESHFLEET_URL=place.url, MESHFLEET_TOKEN=token)
    assert f"{place.url} does not take MESHFLEET_TOKEN" in said
    assert token not in said


def test_a_second_logout_has_nothing_to_do(admin: Shell) -> None:
    assert admin.json("logout")["loggedOut"]
    assert admin.json("logout") == {"loggedOut": False}


def test_a_logout_where_the_service_is_away_still_forgets_the_token(nobody: Shell) -> None:
    nobody.write_login('{"url": "http://127.0.0.1:1", "user": "ada", "token": "a.b.c"}')
    assert "the service was not told" in nobody.expect_failure("logout")
    assert not nobody.login.exists()


# --- Scripts ---


def test_a_key_of_the_environment_goes_before_the_login(admin: Shell, place: RunningFleet) -> None:
    key = admin.json("keys", "add", "viewer for a script", "--role", "viewer")["key"]
    script = {"MESHFLEET_URL": place.url, "MESHFLEET_TOKEN": key}
    assert admin.json_lines("devices", "list", **script)
    assert "viewer" in admin.expect_failure("users", "list", **script)


def test_a_token_without_a_service_is_wrong_usage(admin: Shell) -> None:
    admin.expect_failure("devices", "list", code=2, MESHFLEET_TOKEN="x")  # noqa: S106 # it is made here


def test_a_login_is_not_used_for_another_service(admin: Shell) -> None:
    said = admin.expect_failure("devices", "list", MESHFLEET_URL="http://127.0.0.1:1")
    assert "not logged in at http://127.0.0.1:1" in said


def test_a_password_in_an_address_is_not_repeated(nobody: Shell) -> None:
    for token in ("", "x"):
        address = "http://ada:secret-secret@h"
        said = nobody.expect_failure("devices", "list", MESHFLEET_URL=address, MESHFLEET_TOKEN=token)
        assert "must not contain a user name or password" in said
        assert "secret-secret" not in said


def test_a_script_says_who_vouches_for_the_service(nobody: Shell, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    own = authority.issue_cert("127.0.0.1")
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    own.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    given = ["serve", "--json", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    given += ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with Program(*given, MESHFLEET_ADMIN_PASSWORD=PASSWORD) as service:
        trust = {"MESHFLEET_TLS_CA": str(tmp_path / "authority.pem")}
        address = json.loads(service.read_line())["url"]
        given = ["login", "--url", address, "--user", "admin", "--password", PASSWORD]
        assert "certificate" in nobody.expect_failure(*given)
        nobody.text(*given, **trust)
        key = nobody.json("keys", "add", "a script", "--role", "viewer")["key"]
        script = {"MESHFLEET_URL": address, "MESHFLEET_TOKEN": key}
        assert "certificate" in nobody.expect_failure("devices", "list", **script)
        assert nobody.json_lines("devices", "list", **script, **trust) == []
        missing = str(tmp_path / "missing.pem")
        assert "missing.pem" in nobody.expect_failure("devices", "list", **script, MESHFLEET_TLS_CA=missing)


# --- New tokens ---

ADA = StoredLogin(url="http://127.0.0.1:1", user="ada", token="first")  # noqa: S106 # it is made here


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_a_new_token_is_kept(home: Path) -> None:
    save_login(ADA)
    renewed = save_renewed_token(ADA, "second")
    assert read_login() == renewed
    assert "second" in (home / "meshfleet" / "login.json").read_text()


@pytest.mark.usefixtures("home")
def test_a_new_token_does_not_bring_back_who_logged_out_or_in_again() -> None:
    save_renewed_token(ADA, "second")
    assert read_login() is None
    other = StoredLogin(url="http://127.0.0.1:1", user="bob", token="his")  # noqa: S106 # it is made here
    save_login(other)
    save_renewed_token(ADA, "second")
    assert read_login() == other


def test_a_new_token_waits_for_who_logs_out_meanwhile(home: Path) -> None:
    save_login(ADA)
    held = os.open(home / "meshfleet", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with ThreadPoolExecutor() as pool:
        renewing = pool.submit(save_renewed_token, ADA, "second")
        waits = re.compile(rf"-> FLOCK .* {os.getpid()} ")
        eventually(lambda: renewing.done() or waits.search(Path("/proc/locks").read_text()))
        assert not renewing.done()
        (home / "meshfleet" / "login.json").unlink()
        os.close(held)
        renewing.result(TEST_TIMEOUT)
    assert read_login() is None


def test_a_token_that_the_service_gives_meanwhile_is_kept(
    admin: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def renew() -> None:
        async with open_fleet() as fleet:
            await fleet._credentials.renew()  # noqa: SLF001 # as it does by itself after 25 minutes

    first = json.loads(admin.login.read_text())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(admin.home))
    asyncio.run(renew())
    second = json.loads(admin.login.read_text())
    assert second["token"] != first["token"]
    assert {**second, "token": first["token"]} == first
    assert admin.login.stat().st_mode & 0o777 == 0o600
    assert admin.json_lines("devices", "list")


def test_a_login_shows_its_token_to_nobody() -> None:
    assert "first" not in repr(ADA)


@pytest.mark.usefixtures("home")
def test_who_reads_while_it_is_written_finds_a_whole_login() -> None:
    save_login(ADA)
    with ThreadPoolExecutor() as pool:
        writing = [pool.submit(save_login, ADA) for _ in range(50)]
        while not all(each.done() for each in writing):
            assert read_login() == ADA
        assert [each.result() for each in writing] == [None] * 50
