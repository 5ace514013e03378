"""`meshfleet serve`: start, stop, crash and startup errors."""

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

from meshfleet.rest.paths import LOGIN_PATH
from meshfleet.settings import SETTINGS, load_settings
from tests.cli.programs import TEST_TIMEOUT, Program, log_in, run_command
from tests.eventually import eventually
from tests.row_tables import each_row
from tests.servers import NO_TRUSTED_AUTHORITIES

if TYPE_CHECKING:
    from pathlib import Path
    from signal import Signals


class StartMessage(NamedTuple):
    """Message of a service that has started."""

    url: str
    password: str | None


def serve(folder: Path, *arguments: str, umask: str = "", **variables: str) -> Program:
    options = ["serve", "--json", "--http", "127.0.0.1:0", "--data", str(folder / "data"), *arguments]
    return Program(*options, umask=umask, **variables)


def read_start_message(program: Program) -> StartMessage:
    message: dict[str, Any] = json.loads(program.read_line())
    return StartMessage(message["url"], message["adminPassword"])


# --- Start ---


@pytest.mark.rule("rest-2", "auth-28")
def test_the_first_start_prints_what_is_needed_to_log_in(tmp_path: Path) -> None:
    options = ["serve", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    with Program(*options) as program:
        url = program.read_line().rsplit(maxsplit=1)[-1]
        assert program.read_line().startswith("Gateways and other MQTT clients connect to mqtt://127.0.0.1:")
        assert program.read_line() == f"Data directory: {tmp_path / 'data'}\n"
        words = program.read_line().split()
        assert words[:6] == ["Log", "in", "as", "admin", "with", "the"]
        assert log_in(url, words[7]).json()["status"] == "SUCCESS"
        assert program.wait_for_exit(SIGTERM)[::2] == (0, "")


@pytest.mark.rule("auth-28")
def test_the_admin_password_is_shown_once_and_stays_valid(tmp_path: Path) -> None:
    with serve(tmp_path) as program:
        first = read_start_message(program)
        program.wait_for_exit(SIGTERM)
    with serve(tmp_path) as program:
        restarted = read_start_message(program)
        assert restarted.password is None
        assert log_in(restarted.url, first.password).status_code == 200


@pytest.mark.rule("auth-28")
def test_a_password_from_the_environment_is_not_repeated(tmp_path: Path) -> None:
    with serve(tmp_path, MESHFLEET_ADMIN_PASSWORD="correct-horse") as program:  # noqa: S106 # not a real secret
        message = read_start_message(program)
        assert message.password is None
        assert log_in(message.url, "correct-horse").status_code == 200
        assert "correct-horse" not in "".join(map(str, program.wait_for_exit(SIGTERM)))


def test_a_short_password_from_the_environment_is_refused_with_a_message(tmp_path: Path) -> None:
    with serve(tmp_path, MESHFLEET_ADMIN_PASSWORD="hunter2") as program:  # noqa: S106 # not a real secret
        code, _, errors = program.wait_for_exit()
    assert code == 1
    assert "MESHFLEET_ADMIN_PASSWORD" in errors
    assert "hunter2" not in errors
    assert "Traceback" not in errors


@pytest.mark.rule("rest-164")
def test_settings_are_read_from_the_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'data = "{tmp_path / "mine"}"\nhttp = "127.0.0.1:1"\n')
    with Program("serve", "--json", "--config", str(file), MESHFLEET_HTTP="127.0.0.1:0") as program:
        assert log_in(*read_start_message(program)).status_code == 200
        assert (tmp_path / "mine" / "meshfleet.sqlite").exists()


@pytest.mark.rule("rest-168")
def test_listening_on_all_addresses_without_a_public_url_causes_a_warning(tmp_path: Path) -> None:
    everywhere = ("--http", "0.0.0.0:0")
    with serve(tmp_path, *everywhere) as program:
        url = read_start_message(program).url
        assert (
            f"gateways cannot download firmware from {url}, a wildcard address"
            in program.wait_for_exit(SIGTERM)[2]
        )
    with serve(tmp_path, *everywhere, "--public-url", "https://fleet.example") as program:
        read_start_message(program)
        assert program.wait_for_exit(SIGTERM)[2] == ""


@pytest.mark.rule("rest-170")
def test_the_data_directory_is_private(tmp_path: Path) -> None:
    with serve(tmp_path, umask="0") as program:
        log_in(*read_start_message(program))
        modes = {each.name: each.stat().st_mode & 0o777 for each in (tmp_path / "data").iterdir()}
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
        assert modes.pop("samples") == 0o700
        assert set(modes.values()) == {0o600}, modes


@pytest.mark.rule("rest-172")
def test_the_service_uses_its_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    for each in certificate.cert_chain_pems:
        each.write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    tls_context = ssl.create_default_context()
    authority.configure_trust(tls_context)
    options = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with serve(tmp_path, *options) as program:
        url = read_start_message(program).url
        assert url.startswith("https://")
        assert httpx.get(f"{url}/healthz", verify=tls_context, timeout=TEST_TIMEOUT).status_code == 200


@each_row(
    "name",
    ["MESHFLEET_MESH", "MESHFLEET_TLS_CA", "MESHFLEET_TOKEN", "MESHFLEET_KEY", "MESHFLEET_TAB_SECONDS"],
)
def test_variables_of_other_commands_are_not_misspelled_settings(name: str) -> None:
    assert load_settings({}, {name: "anything"}) == load_settings({}, {})


def test_every_setting_has_a_flag_whose_help_names_its_variable() -> None:
    text = "".join(run_command("serve", "--help").stdout.split())
    for each in SETTINGS:
        assert f"{each.flag}{each.metavar}" in text
        assert f"[envvar:{each.variable}" in text


def test_the_openapi_document_is_printed_without_a_service() -> None:
    for flags in ([], ["--json"]):
        document = json.loads(run_command("openapi", *flags).stdout)
        assert document["openapi"].startswith("3.")
        assert LOGIN_PATH in document["paths"]


# --- Stop ---


@pytest.mark.parametrize("sig", [SIGINT, SIGTERM])
def test_a_signal_stops_the_service_with_a_connected_client(sig: Signals, tmp_path: Path) -> None:
    with (
        serve(tmp_path) as program,
        httpx.Client(verify=NO_TRUSTED_AUTHORITIES, timeout=TEST_TIMEOUT) as client,
    ):
        client.get(f"{read_start_message(program).url}/healthz")
        code, _, errors = program.wait_for_exit(sig)
    assert (code, errors) == (0, "")


def test_the_service_starts_again_after_a_crash(tmp_path: Path) -> None:
    with serve(tmp_path) as program:
        first = read_start_message(program)
        assert log_in(*first).status_code == 200
        assert program.wait_for_exit(SIGKILL)[0] == -SIGKILL
    with serve(tmp_path) as program:
        assert log_in(read_start_message(program).url, first.password).status_code == 200
        assert program.wait_for_exit(SIGTERM)[::2] == (0, "")


# --- Startup errors ---


@pytest.mark.rule("rest-167")
def test_all_invalid_settings_are_reported_and_nothing_is_created(tmp_path: Path) -> None:
    with serve(tmp_path, "--mqtt", "x", "--tls-cert", "missing", MESHFLEET_PUBLIC_URL="y") as program:
        code, output, errors = program.wait_for_exit()
    assert (code, output) == (2, "")
    origins = ["--mqtt", "MESHFLEET_PUBLIC_URL", "--tls-cert", "--tls-cert"]
    assert [line.split(":")[0] for line in errors.splitlines()[-4:]] == origins
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule("rest-173")
def test_a_second_service_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path) as first:
        message = read_start_message(first)
        with serve(tmp_path) as second:
            code, output, errors = second.wait_for_exit()
        assert (code, output, len(errors.splitlines())) == (1, "", 1)
        assert "is in use by another meshfleet serve" in errors
        assert log_in(*message).status_code == 200


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        with serve(tmp_path, "--http", f"127.0.0.1:{port}") as program:
            code, output, errors = program.wait_for_exit()
    assert (code, output, len(errors.splitlines())) == (1, "", 1)
    assert f"127.0.0.1:{port}: port {port} is in use by another program" in errors
    assert "--http HOST:PORT" in errors
    assert not (tmp_path / "data").exists(), "the data directory was created before the port was tried"


def test_the_password_is_shown_by_the_first_successful_start(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = "{}:{}".format(*listener.getsockname())
        with serve(tmp_path, "--http", address) as program:
            assert program.wait_for_exit()[0] == 1
    with serve(tmp_path) as program:
        assert log_in(*read_start_message(program)).status_code == 200


@each_row("arguments", [["--no-such-flag"], ["--log-level", "loud"], ["argument"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert run_command("serve", *arguments).exit_code == 2


# --- Lost passwords ---


@pytest.mark.rule("auth-29")
def test_a_password_can_be_reset_while_the_service_runs(tmp_path: Path) -> None:
    with serve(tmp_path) as program:
        url, lost = read_start_message(program)
        token = log_in(url, lost).json()["authToken"]
        reset = run_command("users", "reset-password", "--json", "--data", str(tmp_path / "data"), "admin")
        assert log_in(url, lost).status_code == 401
        assert log_in(url, json.loads(reset.stdout)["password"]).status_code == 200
        bearer = {"Authorization": f"Bearer {token}"}
        # The session ends within about a second.
        with httpx.Client(headers=bearer, verify=NO_TRUSTED_AUTHORITIES, timeout=TEST_TIMEOUT) as client:
            eventually(lambda: client.get(f"{url}/api/v1/users").status_code == 401, "that the session ends")
