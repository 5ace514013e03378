"""Settings: where they come from, what their texts mean, and what is said of mistakes."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors import Fault, WrongSettings
from meshfleet.settings import SETTINGS, Listen, Settings, load
from meshfleet.wire.rest import BrokerPlace

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which no file of settings lies."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(variables: Mapping[str, str] | None = None, **flags: str) -> Settings:
    return load({name.replace("_", "-"): text for name, text in flags.items()}, variables or {})


def faults(
    variables: Mapping[str, str] | None = None, *, file: Path | None = None, **flags: str
) -> list[Fault]:
    with pytest.raises(WrongSettings) as raised:
        load({name.replace("_", "-"): text for name, text in flags.items()}, variables or {}, file=file)
    return list(raised.value.faults)


# --- The table ---


def test_every_setting_is_described_once() -> None:
    assert tuple(each.field for each in SETTINGS) == Settings.__struct_fields__


def test_a_dotted_name_is_spelled_as_flag_variable_and_field() -> None:
    dotted = SETTINGS[0]._replace(name="requests.max-age")
    assert dotted.flag == "--requests-max-age"
    assert dotted.variable == "MESHFLEET_REQUESTS_MAX_AGE"
    assert dotted.field == "requests_max_age"


def test_a_default_that_is_printed_can_be_given_again() -> None:
    for each in SETTINGS:
        if each.default:
            assert each.read(str(each.default)) == each.default


@pytest.mark.rule("rest-2", "rest-170", "rest-171")
def test_without_a_word_from_anybody_the_defaults_hold() -> None:
    assert settings() == Settings(
        data=Path("meshfleet-data"),
        http=Listen("127.0.0.1", 8080),
        mqtt=Listen("127.0.0.1", 1883),
        database="sqlite",
    )


# --- Where they come from ---


@pytest.mark.rule("rest-164", "rest-165")
def test_a_flag_beats_a_variable_which_beats_the_file_which_beats_the_default(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text('data = "a"\nhttp = "a:1"\nmqtt = "a:1"\n')
    found = settings({"MESHFLEET_HTTP": "b:2", "MESHFLEET_MQTT": "b:2"}, mqtt="c:3")
    assert (found.data, found.http, found.mqtt) == (Path("a"), Listen("b", 2), Listen("c", 3))
    assert found.database == "sqlite"


@pytest.mark.rule("rest-164")
def test_a_file_that_is_named_is_read_instead_of_the_usual_one(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text('http = "usual:1"\ndata = "usual"')
    named = folder / "other.toml"
    named.write_text('http = "named:1"')
    found = load({}, {}, file=named)
    assert (found.http.host, found.data) == ("named", Path("meshfleet-data"))


def test_a_file_may_begin_with_the_mark_of_an_editor(folder: Path) -> None:
    (folder / "meshfleet.toml").write_bytes(b'\xef\xbb\xbfhttp = "a:1"')
    assert settings().http == Listen("a", 1)


def test_a_list_may_be_one_in_the_file(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text('trusted-proxies = ["10.0.0.0/8", "::1"]')
    assert settings().trusted_proxies == (ip_network("10.0.0.0/8"), ip_network("::1"))


def test_an_empty_variable_and_the_variables_of_others_say_nothing() -> None:
    given = {"MESHFLEET_PUBLIC_URL": "", "MESHFLEET_HTTP": "", "MESHFLEET_PASSWORD": "x", "HTTP": "b:2"}
    assert settings(given) == Settings()


# --- What their texts mean ---


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("127.0.0.1:0", Listen("127.0.0.1", 0)),
        ("0.0.0.0:65535", Listen("0.0.0.0", 65535)),  # noqa: S104 # read, not bound
        ("[::1]:8080", Listen("::1", 8080)),
        ("meshfleet_web-1.example.org:80", Listen("meshfleet_web-1.example.org", 80)),
    ],
)
def test_an_address_to_listen_at_is_read_and_printed_back(text: str, listen: Listen) -> None:
    assert settings(http=text).http == listen
    assert str(listen) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8080",
        ":8080",
        "host:",
        "host:65536",
        "::1:8080",
        "[::g]:1",
        "[host]:1",
        "host:1\n",
        "-host:1",
        "host:\u0661",
    ],
)
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    ((field, message),) = faults(http=text)
    assert field == "--http"
    assert "is not a host and a port" in message


def test_gateways_are_never_told_port_0() -> None:
    assert faults(mqtt="127.0.0.1:0")[0].field == "--mqtt"
    assert faults(public_mqtt="mqtt://host:0")[0].field == "--public-mqtt"


@pytest.mark.rule("rest-168")
def test_gateways_are_told_the_public_broker_else_the_listener() -> None:
    assert settings(mqtt="192.0.2.1:1884").broker == BrokerPlace(host="192.0.2.1", port=1884, tls=False)
    public = settings(mqtt="192.0.2.1:1884", public_mqtt="mqtts://fleet.example.org").broker
    assert public == BrokerPlace(host="fleet.example.org", port=8883, tls=True)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("mqtt://host", BrokerPlace(host="host", port=1883, tls=False)),
        ("mqtt://host/", BrokerPlace(host="host", port=1883, tls=False)),
        ("mqtts://[2001:db8::1]:9", BrokerPlace(host="2001:db8::1", port=9, tls=True)),
    ],
)
def test_a_public_broker_is_read(text: str, place: BrokerPlace) -> None:
    assert settings(public_mqtt=text).public_mqtt == place


@pytest.mark.parametrize(
    "text",
    [
        "host:1883",
        "http://host",
        "mqtt://",
        "mqtt://:1",
        "mqtt://host:x",
        "mqtt://host/path",
        "mqtt://u:pw@h",
    ],
)
def test_what_is_no_public_broker_is_refused(text: str) -> None:
    assert [fault.field for fault in faults(public_mqtt=text)] == ["--public-mqtt"]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://fleet.example.org", "https://fleet.example.org"),
        ("https://fleet.example.org/", "https://fleet.example.org"),
        ("HTTP://[::1]:8080/fleet/", "http://[::1]:8080/fleet"),
    ],
)
def test_a_public_address_ends_without_a_slash(text: str, url: str) -> None:
    assert settings(public_url=text).public_url == url


@pytest.mark.parametrize(
    "text",
    [
        "ftp://host",
        "http://",
        "http://host:x",
        "http://host?a=b",
        "http://host/#top",
        "http://user:hunter2@host",
        "http://[::g]/",
    ],
)
def test_what_is_no_public_address_is_refused_and_not_repeated(text: str) -> None:
    ((field, message),) = faults(public_url=text)
    assert field == "--public-url"
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("sqlite", "sqlite"),
        ("postgresql://host/name", "postgresql://host/name"),
        ("postgres://u:p%40ss#/?@[::1]:5432/name", "postgresql://u:p%40ss#/?@[::1]:5432/name"),
        ("postgresql:///name?host=/run/postgresql", "postgresql:///name?host=/run/postgresql"),
    ],
)
def test_a_database_is_read(text: str, address: str) -> None:
    assert settings(database=text).database == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sqlite:///x?hunter2",
        "mysql://u:hunter2@host/name",
        "postgresql://u:hunter2@host:port/name",
        "postgresql:hunter2",
        "postgresql://u:hunter2@host :1/x",
    ],
)
def test_what_is_no_database_is_refused_and_never_repeated(text: str) -> None:
    ((field, message),) = faults({"MESHFLEET_DATABASE": text}) if text else faults(database=text)
    assert field == ("MESHFLEET_DATABASE" if text else "--database")
    assert "hunter2" not in message


@pytest.mark.parametrize("path", ["~/fleet", "~"])
def test_a_path_may_begin_at_home(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert settings(data=path).data == Path(path.replace("~", "/home/ada"))


@pytest.mark.parametrize("path", ["", "a\0b", "~no-such-user-here/fleet"])
def test_what_is_no_path_is_refused(path: str) -> None:
    assert [fault.field for fault in faults(data=path)] == ["--data"]


@pytest.mark.rule("rest-169")
def test_proxies_are_addresses_and_networks() -> None:
    found = settings(trusted_proxies="127.0.0.1, 10.0.0.0/8,2001:db8::/32,").trusted_proxies
    assert found == tuple(map(ip_network, ("127.0.0.1", "10.0.0.0/8", "2001:db8::/32")))


@pytest.mark.parametrize("text", ["proxy.example.org", "10.0.0.1/8", "10.0.0.0/33", "*"])
def test_what_is_no_proxy_is_refused_by_name(text: str) -> None:
    ((field, message),) = faults(trusted_proxies=f"127.0.0.1,{text}")
    assert field == "--trusted-proxies"
    assert message.startswith(repr(text))


# --- Certificates ---


@pytest.fixture
def pem(folder: Path) -> Mapping[str, str]:
    """Files with a certificate, its key, and another key."""
    authority = trustme.CA()
    mine, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    mine.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    mine.private_key_pem.write_to_path(folder / "key.pem")
    other.private_key_pem.write_to_path(folder / "other.pem")
    return {name: str(folder / f"{name}.pem") for name in ("cert", "key", "other")}


@pytest.mark.rule("rest-172")
def test_a_certificate_and_its_key_are_taken(pem: Mapping[str, str]) -> None:
    found = settings(tls_cert=pem["cert"], tls_key=pem["key"])
    assert (found.tls_cert, found.tls_key) == (Path(pem["cert"]), Path(pem["key"]))


def test_a_certificate_needs_its_key_and_a_key_its_certificate(pem: Mapping[str, str]) -> None:
    assert faults(tls_cert=pem["cert"]) == [Fault("--tls-cert", "needs tls-key too")]
    assert faults({"MESHFLEET_TLS_KEY": pem["key"]}) == [Fault("MESHFLEET_TLS_KEY", "needs tls-cert too")]


def test_the_key_of_another_certificate_is_refused(pem: Mapping[str, str]) -> None:
    ((field, message),) = faults(tls_cert=pem["cert"], tls_key=pem["other"])
    assert field == "--tls-cert"
    assert "MISMATCH" in message


def test_a_key_with_a_password_is_refused_instead_of_asked_for(pem: Mapping[str, str], folder: Path) -> None:
    key = serialization.load_pem_private_key(Path(pem["key"]).read_bytes(), None)
    lock = serialization.BestAvailableEncryption(b"hush")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked = folder / "locked.pem"
    locked.write_bytes(key.private_bytes(*form, lock))
    ((field, message),) = faults(tls_cert=pem["cert"], tls_key=str(locked))
    assert field == "--tls-key"
    assert "needs a password" in message


def test_files_that_hold_no_certificate_are_refused(folder: Path) -> None:
    (folder / "empty").touch()
    assert [fault.field for fault in faults(tls_cert="empty", tls_key="empty")] == ["--tls-cert"]


@pytest.mark.parametrize("text", ["missing.pem", "."])
def test_a_file_that_cannot_be_read_is_named(text: str) -> None:
    assert [fault.field for fault in faults(tls_cert=text, tls_key=text)] == ["--tls-cert", "--tls-key"]


# --- Mistakes ---


@pytest.mark.rule("rest-167")
def test_all_mistakes_are_told_together_and_where_each_stands(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text('trusted_proxies = "::1"\nmqtt = 5\n[requests]\nmax-age = 1\n')
    found = faults({"MESHFLEET_PUBLIC_URL": "x"}, http="x", tls_key="missing")
    assert {field for field, _ in found} == {
        "--http",
        "--tls-key",
        "MESHFLEET_PUBLIC_URL",
        "meshfleet.toml: mqtt",
        "meshfleet.toml: requests.max-age",
        "meshfleet.toml: trusted_proxies",
    }


def test_each_mistake_is_a_line() -> None:
    with pytest.raises(WrongSettings) as raised:
        settings(http="x", data="")
    assert [line.split(":")[0] for line in str(raised.value).splitlines()] == ["--data", "--http"]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("trusted_proxies = 1", "did you mean trusted-proxies?"),
        ("HTTP = 1", "did you mean http?"),
        ("[http]\nhost = 1", "did you mean http?"),
        ("frobnicate = 1", "there is no such setting"),
    ],
)
def test_an_unknown_key_gets_the_nearest_name(line: str, hint: str, folder: Path) -> None:
    (folder / "meshfleet.toml").write_text(line)
    assert faults()[0].message.endswith(hint)


@pytest.mark.parametrize(
    "line", ["http = true", "http = ['a:1']", "trusted-proxies = [1]", "http = 2026-01-01", "database = [1]"]
)
def test_a_value_of_another_type_is_refused(line: str, folder: Path) -> None:
    (folder / "meshfleet.toml").write_text(line)
    assert [fault.field for fault in faults()] == [f"meshfleet.toml: {line.split(maxsplit=1)[0]}"]


def test_a_file_that_is_not_toml_is_told_with_the_line(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text('http = "a:1"\nhttp\n')
    ((field, message),) = faults()
    assert field == "meshfleet.toml"
    assert "line 2" in message


def test_a_file_that_is_not_utf8_is_refused(folder: Path) -> None:
    (folder / "meshfleet.toml").write_bytes(b'data = "\xff"')
    assert [fault.field for fault in faults()] == ["meshfleet.toml"]


def test_a_named_file_must_be_there(folder: Path) -> None:
    missing = folder / "missing.toml"
    assert faults(file=missing) == [Fault(str(missing), "cannot be read: No such file or directory")]


def test_nobody_sees_the_password_of_the_database() -> None:
    found = settings(database="postgresql://u:hunter2@host/name")
    assert "hunter2" not in f"{found!r} {found} {found.__rich_repr__()}"
    assert "database='sqlite'" in repr(settings())


_PARTS = ["postgresql", "http", "mqtt", "://", ":", "@", "/", "[", "]", "::1", "host", "80", "~", "%", "\0"]


@given(
    st.sampled_from([each.name for each in SETTINGS]),
    st.lists(st.sampled_from(_PARTS) | st.text()).map("".join),
)
def test_any_text_is_read_or_refused(name: str, text: str) -> None:
    with suppress(WrongSettings):
        load({name: text}, {})
