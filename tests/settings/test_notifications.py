"""Settings of the mail server and of webhooks."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from meshfleet.settings.model import MailSettings, Settings, WebhookSettings
from tests.row_tables import each_row
from tests.settings.from_flags import faults, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

MAIL = {"mail_host": "mail.example.org", "mail_from": "meshfleet@example.org"}
LOGIN = {"mail_user": "meshfleet", "mail_password": "topsecret"}


def test_without_settings_no_mail_is_sent_and_only_public_hosts_are_called() -> None:
    assert settings().mail == MailSettings()
    assert settings().webhooks == WebhookSettings(allow=(), allow_http=False)


def test_the_file_has_a_table_for_each(folder: Path, pem: Mapping[str, str]) -> None:
    (folder / "meshfleet.toml").write_text(
        '[mail]\nhost = "mail.example.org"\nport = 25\nuser = "meshfleet"\npassword-file = "password"\n'
        f'from = "meshfleet@example.org"\ntls = "tls"\nca = "{pem["cert"]}"\n'
        f'[webhooks]\nallow = ["10.20.0.0/16", "::1"]\nallow-http = true\nca = "{pem["cert"]}"\n'
    )
    (folder / "password").write_text("topsecret\n")
    (folder / "password").chmod(0o600)
    found = settings()
    assert found.mail == MailSettings(
        host="mail.example.org",
        port=25,
        user="meshfleet",
        password="topsecret",  # noqa: S106 # not a real one
        sender="meshfleet@example.org",
        tls="tls",
        ca=Path(pem["cert"]),
    )
    assert found.webhooks == WebhookSettings(
        allow=(ip_network("10.20.0.0/16"), ip_network("::1/128")), allow_http=True, ca=Path(pem["cert"])
    )


def test_the_usual_port_depends_on_tls() -> None:
    ports = {mode: settings(**MAIL, mail_tls=mode).mail.server_port for mode in ("starttls", "tls", "off")}
    assert ports == {"starttls": 587, "tls": 465, "off": 587}
    assert settings(**MAIL, mail_tls="tls", mail_port="25").mail.server_port == 25


def test_the_password_of_the_mail_server_is_not_shown() -> None:
    found = settings(**MAIL, **LOGIN)
    assert found.mail.password == "topsecret"  # noqa: S105 # not a real one
    for text in (repr(found), repr(found.mail), repr(found.mail.__rich_repr__())):
        assert "topsecret" not in text
    assert repr(Settings().mail) == "MailSettings(host=None, port=None, sender=None, tls='starttls')"


@each_row(
    ("given", "fields"),
    [
        ({"mail_host": "mail.example.org"}, ["--mail-host"]),
        ({**MAIL, "mail_user": "meshfleet"}, ["--mail-user"]),
        ({**MAIL, "mail_password": "topsecret"}, ["--mail-password"]),
        ({**MAIL, **LOGIN, "mail_password": "top\nsecret"}, ["--mail-password"]),
        ({**MAIL, **LOGIN, "mail_password": "tøpsecret"}, ["--mail-password"]),
        ({**MAIL, "mail_host": "mail example"}, ["--mail-host"]),
        ({**MAIL, "mail_host": "http://mail"}, ["--mail-host"]),
        ({**MAIL, "mail_host": "mail:25"}, ["--mail-host"]),
        ({**MAIL, "mail_port": "0"}, ["--mail-port"]),
        ({**MAIL, "mail_port": "65536"}, ["--mail-port"]),
        ({**MAIL, "mail_from": "meshfleet"}, ["--mail-from"]),
        ({**MAIL, "mail_from": "Meshfleet <a@example.org>"}, ["--mail-from"]),
        ({**MAIL, "mail_from": "a@example.org\r\nBcc: b@example.org"}, ["--mail-from"]),
        ({**MAIL, "mail_from": f"a@{'b' * 64}.org"}, ["--mail-from"]),
        ({**MAIL, "mail_tls": "on"}, ["--mail-tls"]),
        ({**MAIL, "mail_ca": "missing"}, ["--mail-ca"]),
        ({"webhooks_allow": "10.0.0.1/8"}, ["--webhooks-allow"]),
        ({"webhooks_allow": "intranet"}, ["--webhooks-allow"]),
        ({"webhooks_allow_http": "yes"}, ["--webhooks-allow-http"]),
        ({"webhooks_ca": "missing"}, ["--webhooks-ca"]),
    ],
)
def test_mistakes_are_reported(folder: Path, given: dict[str, str], fields: list[str]) -> None:
    assert folder.exists()
    found = faults(**given)
    assert [each.field for each in found] == fields
    assert "secret" not in found[0].message


@each_row("host", ["mail", "mail.example.org", "10.0.0.1", "::1", "[::1]"])
def test_a_mail_server_has_a_name_or_an_address(host: str) -> None:
    assert settings(mail_host=host, mail_from="a@example.org").mail.host == host.strip("[]")


def test_authorities_without_tls_have_no_effect(pem: Mapping[str, str]) -> None:
    given = {**MAIL, "mail_tls": "off", "mail_ca": pem["cert"]}
    assert faults(**given) == [("--mail-ca", "has no effect: mail.tls is off")]
    (Path(pem["cert"]).parent / "empty").touch()
    for name in ("mail_ca", "webhooks_ca"):
        (fault,) = faults(**MAIL, **{name: str(Path(pem["cert"]).parent / "empty")})
        assert "contains no certificates" in fault.message
