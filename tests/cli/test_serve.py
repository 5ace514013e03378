"""The service as an operator starts, stops and loses it."""

from __future__ import annotations

import json
import socket
import ssl
from contextlib import closing
from signal import SIGINT, SIGKILL, SIGTERM
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import pytest
import trustme

from meshfleet.rest import LOGIN_PATH
from meshfleet.settings import SETTINGS, load_settings
from tests.cli.programs import TEST_TIMEOUT, Program, run_command
from tests.eventually import eventually
from tests.row_tables import each_row

if TYPE_CHECKING:
    from pathlib import Path
    from signal import Signals


class StartMessage(NamedTuple):
    """What a service tells when it has started."""

    url: str
    password: str | None


def serve(folder: Path, *arguments: str, umask: str = "", **variables: str) -> Program:
    given = ["serve", "--json", "--http", "127.0.0.1:0", "--data", str(folder / "data"), *arguments]
    return Program(*given, umask=umask, **variables)


def said(program: Program) -> StartMessage:
    told: dict[str, Any] = json.loads(program.read_line())
    return StartMessage(told["url"], told["adminPassword"])


def log_in(url: str, password: str | None) -> httpx.Response:
    return httpx.post(
        url + LOGIN_PATH, json={"username": "admin", "password": password}, timeout=TEST_TIMEOUT
    )


# --- Its beginning ---


@pytest.mark.rule("rest-2", "auth-28")
def test_a_newcomer_is_told_all_that_is_needed_to_sign_in(tmp_path: Path) -> None:
    given = ["serve", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    with Program(*given) as program:
        url = program.read_line().rsplit(maxsplit=1)[-1]
        assert program.read_line().startswith("Gateways and other MQTT clients connect to mqtt://127.0.0.1:")
        assert program.read_line() == f"Its data is in {tmp_path / 'data'}\n"
        words = program.read_line().split()
        assert words[:6] == ["Sign", "in", "as", "admin", "with", "the"]
        assert log_in(url, words[7]).json()["status"] == "SUCCESS"
        assert program.wait_for_exit(SIGTERM)[::2] == (0, "")


@pytest.mark.rule("auth-28")
def test_the_password_is_shown_once_and_holds_for_ever(tmp_path: Path) -> None:
    with serve(tmp_path) as program:
        first = said(program)
        program.wait_for_exit(SIGTERM)
    with serve(tmp_path) as program:
        again = said(program)
        assert again.password is None
        assert log_in(again.url, first.password).status_code == 200


@pytest.mark.rule("auth-28")
def test_a_password_from_the_environment_is_not_repeated(tmp_path: Path) -> None:
    with serve(tmp_path, MESHFLEET_ADMIN_PASSWORD="correct-horse") as program:  # noqa: S106 # it is made here
        told = said(program)
        assert told.password is None
        assert log_in(told.url, "correct-horse").status_code == 200
        assert "correct-horse" not in "".join(map(str, program.wait_for_exit(SIGTERM)))


def test_a_password_from_the_environment_that_is_too_short_is_refused_in_words(tmp_path: Path) -> None:
    with serve(tmp_path, MESHFLEET_ADMIN_PASSWORD="hunter2") as program:  # noqa: S106 # it is made here
        code, _, errors = program.wait_for_exit()
    assert code == 1
    assert "MESHFLEET_ADMIN_PASSWORD" in errors
    assert "hunter2" not in errors
    assert "Traceback" not in errors


@pytest.mark.rule("rest-164")
def test_settings_come_from_the_file_and_the_environment_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'data = "{tmp_path / "mine"}"\nhttp = "127.0.0.1:1"\n')
    with Program("serve", "--json", "--config", str(file), MESHFLEET_HTTP="127.0.0.1:0") as program:
        assert log_in(*said(program)).status_code == 200
        assert (tmp_path / "mine" / "meshfleet.sqlite").exists()


@pytest.mark.rule("rest-168")
def test_who_listens_everywhere_is_warned_that_gateways_need_an_address(tmp_path: Path) -> None:
    everywhere = ("--http", "0.0.0.0:0")
    with serve(tmp_path, *everywhere) as program:
        url = said(program).url
        assert (
            f"gateways cannot download firmware from {url}, a wildcard address"
            in program.wait_for_exit(SIGTERM)[2]
        )
    with serve(tmp_path, *everywhere, "--public-url", "https://fleet.example") as program:
        said(program)
        assert program.wait_for_exit(SIGTERM)[2] == ""


@pytest.mark.rule("rest-170")
def test_what_it_keeps_is_for_its_owner_alone(tmp_path: Path) -> None:
    with serve(tmp_path, umask="0") as program:
        log_in(*said(program))
        modes = {each.name: each.stat().st_mode & 0o777 for each in (tmp_path / "data").iterdir()}
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
        assert modes.pop("samples") == 0o700
        assert set(modes.values()) == {0o600}, modes


@pytest.mark.rule("rest-172")
def test_it_serves_with_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    mine = authority.issue_cert("127.0.0.1")
    for each in mine.cert_chain_pems:
        each.write_to_path(tmp_path / "cert.pem")
    mine.private_key_pem.write_to_path(tmp_path / "key.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    given = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with serve(tmp_path, *given) as program:
        url = said(program).url
        assert url.startswith("https://")
        assert httpx.get(f"{url}/healthz", verify=trusting, timeout=TEST_TIMEOUT).status_code == 200


@each_row(
    "name",
    ["MESHFLEET_MESH", "MESHFLEET_TLS_CA", "MESHFLEET_TOKEN", "MESHFLEET_KEY", "MESHFLEET_TAB_SECONDS"],
)
def test_variables_of_other_commands_are_no_misspelt_settings(name: str) -> None:
    assert load_settings({}, {name: "anything"}) == load_settings({}, {})


def test_every_setting_has_a_flag_whose_help_names_its_variable() -> None:
    text = "".join(run_command("serve", "--help").stdout.split())
    for each in SETTINGS:
        assert f"{each.flag}{each.metavar}" in text
        assert f"[envvar:{each.variable}" in text


def test_the_interface_is_described_without_a_service() -> None:
    for flags in ([], ["--json"]):
        document = json.loads(run_command("openapi", *flags).stdout)
        assert document["openapi"].startswith("3.")
        assert LOGIN_PATH in document["paths"]


# --- Its end ---


@pytest.mark.parametrize("how", [SIGINT, SIGTERM])
def test_a_signal_ends_it_although_somebody_is_connected(how: Signals, tmp_path: Path) -> None:
    with serve(tmp_path) as program, httpx.Client(timeout=TEST_TIMEOUT) as client:
        client.get(f"{said(program).url}/healthz")
        code, _, errors = program.wait_for_exit(how)
    assert (code, errors) == (0, "")


def test_after_a_sudden_end_it_starts_again(tmp_path: Path) -> None:
    with serve(tmp_path) as program:
        first = said(program)
        assert log_in(*first).status_code == 200
        assert program.wait_for_exit(SIGKILL)[0] == -SIGKILL
    with serve(tmp_path) as program:
        assert log_in(said(program).url, first.password).status_code == 200
        assert program.wait_for_exit(SIGTERM)[::2] == (0, "")


# --- What keeps it from starting ---


@pytest.mark.rule("rest-167")
def test_all_mistakes_are_told_and_nothing_is_made(tmp_path: Path) -> None:
    with serve(tmp_path, "--mqtt", "x", "--tls-cert", "missing", MESHFLEET_PUBLIC_URL="y") as program:
        code, output, errors = program.wait_for_exit()
    assert (code, output) == (2, "")
    places = ["--mqtt", "MESHFLEET_PUBLIC_URL", "--tls-cert", "--tls-cert"]
    assert [line.split(":")[0] for line in errors.splitlines()[-4:]] == places
    assert list(tmp_path.iterdir()) == []


def test_a_second_service_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path) as first:
        told = said(first)
        with serve(tmp_path) as second:
            code, output, errors = second.wait_for_exit()
        assert (code, output, len(errors.splitlines())) == (1, "", 1)
        assert "is in use by another meshfleet serve" in errors
        assert log_in(*told).status_code == 200


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with serve(tmp_path, "--http", f"127.0.0.1:{port}") as program:
            code, output, errors = program.wait_for_exit()
    assert (code, output, len(errors.splitlines())) == (1, "", 1)
    assert f"127.0.0.1:{port}: port {port} is in use by another program" in errors
    assert "--http HOST:PORT" in errors
    assert not (tmp_path / "data").exists(), "something was made before the port was tried"


def test_who_could_not_start_is_told_the_password_later(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = "{}:{}".format(*taken.getsockname())
        with serve(tmp_path, "--http", address) as program:
            assert program.wait_for_exit()[0] == 1
    with serve(tmp_path) as program:
        assert log_in(*said(program)).status_code == 200


@each_row("arguments", [["--no-such-flag"], ["--log-level", "loud"], ["argument"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert run_command("serve", *arguments).exit_code == 2


# --- Somebody lost their password ---


@pytest.mark.rule("auth-29")
def test_a_password_can_be_reset_while_the_service_runs(tmp_path: Path) -> None:
    with serve(tmp_path) as program:
        url, lost = said(program)
        token = log_in(url, lost).json()["authToken"]
        reset = run_command("users", "reset-password", "--json", "--data", str(tmp_path / "data"), "admin")
        assert log_in(url, lost).status_code == 401
        assert log_in(url, json.loads(reset.stdout)["password"]).status_code == 200
        bearer = {"Authorization": f"Bearer {token}"}
        with httpx.Client(headers=bearer, timeout=TEST_TIMEOUT) as client:  # which ends within about a second
            eventually(lambda: client.get(f"{url}/api/v1/users").status_code == 401, "that the session ends")
