"""Settings in files of their own: credentials of systemd, and keys such as `database-file`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import Fault
from meshfleet.errors.startup import WrongSettings
from meshfleet.settings import load_settings
from meshfleet.settings.secret_files import ADMIN_PASSWORD, read_credential
from tests.row_tables import each_row
from tests.settings.from_flags import faults, settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

URL = "postgresql://user:secret@host/name"
BROKER = "mqtts://user:secret@broker.example.org"


def write_credentials(folder: Path, contents: Mapping[str, str]) -> dict[str, str]:
    """Write credentials as systemd does, and return the environment of the service."""
    directory = folder / "credentials"
    directory.mkdir(exist_ok=True)
    for name, content in contents.items():
        (directory / f"meshfleet.{name}").write_text(content)
    return {"CREDENTIALS_DIRECTORY": str(directory)}


@pytest.mark.rule("rest-223")
def test_every_setting_may_be_a_credential(folder: Path, pem: Mapping[str, str]) -> None:
    credentials = {"database": f"{URL}\n", "broker": BROKER, "requests.max-age": "7\r\n"}
    found = settings(write_credentials(folder, credentials))
    assert (found.database, found.requests_max_age) == (URL, 7)
    assert found.external_broker is not None
    assert (found.external_broker.host, found.external_broker.password) == ("broker.example.org", "secret")
    for name in ("cert", "key"):
        (folder / "credentials" / f"meshfleet.tls-{name}").write_bytes((folder / f"{name}.pem").read_bytes())
    found = settings({"CREDENTIALS_DIRECTORY": str(folder / "credentials")})
    assert found.tls_key == folder / "credentials" / "meshfleet.tls-key", "a file setting is its credential"
    assert pem


@pytest.mark.rule("rest-223")
def test_a_credential_comes_after_variables_and_before_the_file(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text('topic-prefix = "file"\nacks = false\n')
    variables = write_credentials(folder, {"topic-prefix": "credential", "acks": "on", "log-level": "info"})
    assert settings(variables).topic_prefix == "credential"
    assert settings(variables).acks
    found = settings({**variables, "MESHFLEET_TOPIC_PREFIX": "variable"}, log_level="error")
    assert (found.topic_prefix, found.log_level) == ("variable", "error")


@pytest.mark.rule("rest-223")
def test_secrets_may_be_in_files_that_the_file_or_a_variable_names(folder: Path) -> None:
    (folder / "url").write_text(f"{URL}\n")
    (folder / "broker").write_text(BROKER)
    (folder / "meshfleet.toml").write_text('database-file = "url"\n')
    assert settings().database == URL
    assert settings(database="sqlite").database == "sqlite"
    found = settings({"MESHFLEET_BROKER_FILE": str(folder / "broker")})
    assert found.external_broker is not None
    assert found.external_broker.host == "broker.example.org"


def test_only_one_of_a_secret_and_its_file_may_be_set(folder: Path) -> None:
    (folder / "url").write_text(URL)
    (folder / "meshfleet.toml").write_text('database-file = "url"\ndatabase = "sqlite"\n')
    assert faults() == [Fault("meshfleet.toml: database-file", "is set, and so is database: set only one")]
    (folder / "meshfleet.toml").unlink()
    variables = {"MESHFLEET_DATABASE": "sqlite", "MESHFLEET_DATABASE_FILE": "url"}
    assert faults(variables) == [
        Fault("MESHFLEET_DATABASE_FILE", "is set, and so is MESHFLEET_DATABASE: set only one")
    ]


@each_row(
    ("content", "expected"),
    [
        (b"", "secret-file is empty"),
        (b"\n", "secret-file is empty"),
        (b"x" * 65537, "secret-file is larger than 65536 bytes"),
        (b"secret\xff", "secret-file is not UTF-8 text"),
        (b"mysql://user:secret@host", "is neither sqlite nor a URL such as postgresql://"),
        (None, "secret-file cannot be read: No such file or directory"),
    ],
)
def test_an_unusable_file_is_named_without_its_content(
    folder: Path, content: bytes | None, expected: str
) -> None:
    path = folder / "secret-file"
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    ((field, message),) = faults({"MESHFLEET_DATABASE_FILE": "secret-file"})
    assert field == "MESHFLEET_DATABASE_FILE"
    assert message.startswith(expected)
    assert "user:secret" not in message


def test_a_url_in_place_of_a_path_is_not_printed() -> None:
    ((field, message),) = faults({"MESHFLEET_DATABASE_FILE": URL})
    assert field == "MESHFLEET_DATABASE_FILE"
    assert message == "must be the path of a file that contains the URL, not the URL itself"


def test_an_unknown_credential_and_a_missing_directory_are_reported(folder: Path) -> None:
    variables = write_credentials(folder, {"datbase": "x", ADMIN_PASSWORD: "x"})
    (folder / "credentials" / "of-another-service").write_text("x")
    assert faults(variables) == [
        Fault("credential meshfleet.datbase", "unknown setting; did you mean database?")
    ]
    ((field, message),) = faults({"CREDENTIALS_DIRECTORY": str(folder / "missing")})
    assert (field, message) == (
        "CREDENTIALS_DIRECTORY",
        f"{folder / 'missing'} cannot be read: No such file or directory",
    )


def test_the_admin_password_may_be_a_credential(folder: Path) -> None:
    variables = write_credentials(folder, {ADMIN_PASSWORD: "a long password\n"})
    assert read_credential(ADMIN_PASSWORD, variables) == "a long password"
    assert read_credential(ADMIN_PASSWORD, {}) is None
    assert load_settings({}, variables) == load_settings({}, {})
    write_credentials(folder, {ADMIN_PASSWORD: ""})
    with pytest.raises(WrongSettings, match=r"credential meshfleet\.admin-password: .* is empty"):
        read_credential(ADMIN_PASSWORD, variables)
