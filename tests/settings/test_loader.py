"""Table of settings, their sources, and the reporting of mistakes."""

from __future__ import annotations

import ast
import subprocess
import sys
from ipaddress import ip_network
from operator import attrgetter
from pathlib import Path

import pytest

from meshfleet.errors import Fault
from meshfleet.errors.startup import WrongSettings
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.settings import SETTINGS, ListenAddress, Retention, Settings, load_settings
from meshfleet.settings.model import HomeAssistantSettings, InfluxSettings, MailSettings, WebhookSettings
from tests.row_tables import each_row
from tests.settings.from_flags import faults, settings

_GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "settings.md"

# --- The table ---


def test_every_setting_is_described_once() -> None:
    tables = {
        "limits": BrokerLimits,
        "retention": Retention,
        "homeassistant": HomeAssistantSettings,
        "influx": InfluxSettings,
        "mail": MailSettings,
        "webhooks": WebhookSettings,
    }
    nested = [f"{name}.{field}" for name, table in tables.items() for field in table.__struct_fields__]
    top_level = [field for field in Settings.__struct_fields__ if field not in tables]
    paths = [each.attribute_path for each in SETTINGS]
    assert paths[: len(top_level)] == top_level
    assert sorted(paths[len(top_level) :]) == sorted(nested)


@pytest.mark.rule("rest-165")
@each_row(
    ("name", "expected"),
    [
        ("requests.max-age", ("--requests-max-age", "MESHFLEET_REQUESTS_MAX_AGE", "requests_max_age")),
        (
            "limits.packet-size",
            ("--limits-packet-size", "MESHFLEET_LIMITS_PACKET_SIZE", "limits.packet_size"),
        ),
    ],
)
def test_a_dotted_name_becomes_flag_variable_and_attribute(name: str, expected: tuple[str, ...]) -> None:
    (setting,) = (each for each in SETTINGS if each.name == name)
    assert (setting.flag, setting.variable, setting.attribute_path) == expected


def test_no_two_settings_share_a_flag_or_a_variable() -> None:
    assert len({each.flag for each in SETTINGS}) == len({each.variable for each in SETTINGS}) == len(SETTINGS)


def test_a_printed_default_can_be_parsed() -> None:
    for each in SETTINGS:
        if each.default_text:
            assert each.parse(each.default_text) == each.default


@pytest.mark.rule("rest-2", "rest-170", "rest-171")
def test_settings_have_defaults() -> None:
    assert settings() == Settings(
        data=Path("meshfleet-data"),
        http=ListenAddress("127.0.0.1", 8080),
        mqtt=ListenAddress("127.0.0.1", 1883),
        mqtt_tls=None,
        mqtt_ws=None,
        topic_prefix="",
        database="sqlite",
        requests_max_age=60,
        limits=BrokerLimits(),
    )


def test_the_guide_lists_every_setting_with_its_default() -> None:
    rows = [[cell.strip() for cell in line.split("|")] for line in _GUIDE.read_text().splitlines()]
    for each in SETTINGS:
        default = each.default_text
        if each.name.startswith("limits."):
            assert [f"`{each.name.removeprefix('limits.')}`", default] in [row[1:3] for row in rows]
        else:
            (row,) = (row for row in rows if f"`{each.flag} {each.metavar}`" in "".join(row[1:2]).split(", "))
            assert f"`{each.variable}`" in row[2].split(", ")
            assert row[3].strip("`") == default


_IMPORT_SCRIPT = """
import sys
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.settings import ListenAddress, Settings
assert Settings().limits == BrokerLimits()
print([name for name in sys.modules if name.startswith("meshfleet.settings.")])
"""


def test_reading_settings_does_not_import_the_loader() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", _IMPORT_SCRIPT], check=True, capture_output=True, text=True
    )
    assert ast.literal_eval(completed.stdout) == ["meshfleet.settings.model"]


# --- Sources ---


@pytest.mark.rule("rest-164", "rest-165")
def test_flags_override_variables_which_override_the_file(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text('data = "a"\nhttp = "a:1"\nmqtt = "a:1"\n')
    found = settings({"MESHFLEET_HTTP": "b:2", "MESHFLEET_MQTT": "b:2"}, mqtt="c:3")
    assert (found.data, found.http, found.mqtt) == (Path("a"), ListenAddress("b", 2), ListenAddress("c", 3))
    assert found.database == "sqlite"


@pytest.mark.rule("rest-164", "rest-165")
def test_flags_and_variables_override_tables_of_the_file(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text(
        "[requests]\nmax-age = 1\n[limits]\nretained = 1\nin-flight = 1\nsubscriptions = 1\n"
    )
    variables = {"MESHFLEET_LIMITS_IN_FLIGHT": "2", "MESHFLEET_LIMITS_RETAINED": "2"}
    found = settings(variables, limits_retained="3")
    assert found.requests_max_age == 1
    assert found.limits == BrokerLimits(subscriptions=1, in_flight=2, retained=3)


@pytest.mark.rule("rest-164", "rest-165")
@each_row(
    ("name", "text", "value"),
    [
        ("mqtt", "a:0", ListenAddress("a", 0)),
        ("mqtt", "off", None),
        ("mqtt-ws", "[::1]:9001", ListenAddress("::1", 9001)),
        ("topic-prefix", "site/one", "site/one"),
        ("requests.max-age", "7.5", 7.5),
        ("requests.at-once", "4", 4),
        *((f"limits.{field}".replace("_", "-"), "1025", 1025) for field in BrokerLimits.__struct_fields__),
    ],
)
def test_a_setting_can_be_a_flag_a_variable_or_a_key(
    name: str, text: str, value: object, folder: Path
) -> None:
    (folder / "meshfleet.toml").unlink(missing_ok=True)  # of the previous row
    (setting,) = (each for each in SETTINGS if each.name == name)
    assert setting.default != value
    assert attrgetter(setting.attribute_path)(load_settings({name: text}, {})) == value
    assert attrgetter(setting.attribute_path)(load_settings({}, {setting.variable: text})) == value
    table, _, key = name.rpartition(".")
    (folder / "meshfleet.toml").write_text(f'{f"[{table}]" if table else ""}\n{key} = "{text}"')
    assert attrgetter(setting.attribute_path)(load_settings({}, {})) == value


@pytest.mark.rule("rest-164")
def test_a_named_file_is_read_instead_of_the_default_file(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text('http = "default:1"\ndata = "default"')
    named = folder / "other.toml"
    named.write_text('http = "named:1"')
    found = load_settings({}, {}, file=named)
    assert (found.http.host, found.data) == ("named", Path("meshfleet-data"))


def test_a_file_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    (folder / "meshfleet.toml").write_bytes(b'\xef\xbb\xbfhttp = "a:1"')
    assert settings().http == ListenAddress("a", 1)


def test_a_list_may_be_an_array_in_the_file(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text('trusted-proxies = ["10.0.0.0/8", "::1"]')
    assert settings().trusted_proxies == (ip_network("10.0.0.0/8"), ip_network("::1"))


def test_empty_and_foreign_variables_are_ignored() -> None:
    variables = {"MESHFLEET_PUBLIC_URL": "", "MESHFLEET_HTTP": "", "MESHFLEET_PASSWORD": "x", "HTTP": "b:2"}
    assert settings(variables) == Settings()


# --- Mistakes ---


@pytest.mark.rule("rest-167")
def test_all_mistakes_are_reported_together_with_their_origins(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text(
        'trusted_proxies = "::1"\nmqtt = 5\n[requests]\nmax-age = 0\n[limits]\nretained = 0\nretries = 1\n'
    )
    variables = {"MESHFLEET_PUBLIC_URL": "x", "MESHFLEET_LIMITS_RETAINT": "1", "MESHFLEET_MQTT_TLS": "a:1"}
    found = faults(variables, http="x", tls_key="missing", topic_prefix="+")
    assert {field for field, _ in found} == {
        "--http",
        "--tls-key",
        "--topic-prefix",
        "MESHFLEET_LIMITS_RETAINT",
        "MESHFLEET_MQTT_TLS",
        "MESHFLEET_PUBLIC_URL",
        "meshfleet.toml: limits.retained",
        "meshfleet.toml: limits.retries",
        "meshfleet.toml: mqtt",
        "meshfleet.toml: requests.max-age",
        "meshfleet.toml: trusted_proxies",
    }


def test_each_mistake_is_on_its_own_line() -> None:
    with pytest.raises(WrongSettings) as raised:
        settings(http="x", data="")
    assert [line.split(":")[0] for line in str(raised.value).splitlines()] == ["--data", "--http"]


@each_row(
    ("line", "hint"),
    [
        ("trusted_proxies = 1", "did you mean trusted-proxies?"),
        ("HTTP = 1", "did you mean http?"),
        ("[http]\nhost = 1", "did you mean http?"),
        ("[limits]\npacket_size = 1", "did you mean limits.packet-size?"),
        ("packet-size = 1", "did you mean limits.packet-size?"),
        ("frobnicate = 1", "unknown setting"),
    ],
)
def test_an_unknown_key_gets_a_suggestion(line: str, hint: str, folder: Path) -> None:
    (folder / "meshfleet.toml").write_text(line)
    assert faults()[0].message.endswith(hint)


@each_row(
    "line",
    [
        "http = true",
        "data = true",
        "topic-prefix = false",
        "http = ['a:1']",
        "trusted-proxies = [1]",
        "http = 2026-01-01",
        "database = [1]",
    ],
)
def test_a_value_of_a_wrong_type_is_refused(line: str, folder: Path) -> None:
    (folder / "meshfleet.toml").write_text(line)
    assert [fault.field for fault in faults()] == [f"meshfleet.toml: {line.split(maxsplit=1)[0]}"]


def test_a_file_that_is_not_toml_is_reported_with_the_line(folder: Path) -> None:
    (folder / "meshfleet.toml").write_text('http = "a:1"\nhttp\n')
    ((field, message),) = faults()
    assert field == "meshfleet.toml"
    assert "line 2" in message


def test_a_file_that_is_not_utf8_is_refused(folder: Path) -> None:
    (folder / "meshfleet.toml").write_bytes(b'data = "\xff"')
    assert [fault.field for fault in faults()] == ["meshfleet.toml"]


def test_a_named_file_must_exist(folder: Path) -> None:
    missing = folder / "missing.toml"
    assert faults(None, missing) == [Fault(str(missing), "cannot be read: No such file or directory")]


def test_the_password_of_the_database_is_not_shown() -> None:
    found = settings(database="postgresql://u:hunter2@host/name", mqtt="off", limits_retained="7")
    assert "hunter2" not in f"{found!r} {found} {found.__rich_repr__()}"
    assert "mqtt=None" in repr(found)
    assert "retained=7" in repr(found)
    assert "database='sqlite'" in repr(settings())
