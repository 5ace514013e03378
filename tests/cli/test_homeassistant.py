"""`meshfleet homeassistant`: the settings file, the login, and the removal of devices."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.cli.programs import PahoListener, broker_url, run_command
from tests.row_tables import each_row
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD = "p@ss:w/rd"  # noqa: S105 # not a real secret
ENCODED = "p%40ss%3Aw%2Frd"

BEFORE = """\
# Our fleet.
data = "{data}"  # on the large disk

[homeassistant]
# broker = "embedded"
form = "entity"

[retention]
event = 7200
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """Run a mosquitto that accepts every client."""
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as running:
        yield running


@pytest.mark.rule("homeassistant-11")
@each_row(
    ("password", "variables", "stdin"),
    [
        (f":{ENCODED}", {}, ""),
        ("", {}, f"{PASSWORD}\n"),
        ("", {"MESHFLEET_HOMEASSISTANT_PASSWORD": PASSWORD}, ""),
    ],
)
def test_setup_writes_the_setting_and_keeps_comments(
    broker: Mosquitto, tmp_path: Path, password: str, variables: dict[str, str], stdin: str
) -> None:
    file = tmp_path / "meshfleet.toml"
    file.write_text(BEFORE.format(data=tmp_path / "data"))
    url = broker_url(broker, user=f"mesh{password}")
    arguments = ("homeassistant", "setup", "--config", str(file), "--broker", url)
    result = run_command(*arguments, stdin=stdin, **variables)
    assert result.exit_code == 0, result.output
    assert result.output.endswith(
        "\nThen, in Home Assistant: Open Settings > Devices: your devices within a minute\n"
    )
    assert PASSWORD not in result.output
    assert ENCODED not in result.output
    written = file.read_text()
    expected = broker_url(broker, user=f"mesh:{ENCODED}")
    line = f'broker = "{expected}"\n'
    assert written.replace(line, "") == BEFORE.format(data=tmp_path / "data")
    assert tomllib.loads(written)["homeassistant"] == {"broker": expected, "form": "entity"}
    again = run_command(*arguments, stdin=stdin, **variables)
    assert again.exit_code == 0, again.output
    assert file.read_text() == written


@pytest.mark.rule("homeassistant-11")
def test_setup_creates_a_private_file_and_keeps_links(broker: Mosquitto, tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    result = run_command("homeassistant", "setup", "--config", str(file), "--broker", broker_url(broker))
    assert result.exit_code == 0, result.output
    assert file.read_text() == f'[homeassistant]\nbroker = "{broker_url(broker)}"\n'
    assert file.stat().st_mode & 0o077 == 0
    file.chmod(0o640)
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    other = broker_url(broker, user="mesh:other")
    result = run_command("homeassistant", "setup", "--config", str(link), "--broker", other)
    assert result.exit_code == 0, result.output
    assert (link.readlink(), file.stat().st_mode & 0o777) == (file, 0o640)
    assert file.read_text() == f'[homeassistant]\nbroker = "{other}"\n'
    assert {each.name for each in tmp_path.iterdir()} == {"new.toml", "link.toml"}


@pytest.mark.rule("homeassistant-11")
@each_row(
    "text",
    [
        '[homeassistant]\nbroker-file = "url"\n',
        'homeassistant = {form = "device"}\n',
        'homeassistant.form = "device"\n',
        '[["homeassistant"]]\n',
    ],
)
def test_setup_does_not_damage_a_file_in_another_style(broker: Mosquitto, tmp_path: Path, text: str) -> None:
    file = tmp_path / "meshfleet.toml"
    file.write_text(text)
    result = run_command("homeassistant", "setup", "--config", str(file), "--broker", broker_url(broker))
    assert result.exit_code != 0
    assert file.read_text() == text


@pytest.mark.rule("homeassistant-11")
def test_setup_changes_nothing_if_the_broker_is_away(tmp_path: Path) -> None:
    file = tmp_path / "meshfleet.toml"
    result = run_command(
        "homeassistant", "setup", "--config", str(file), "--broker", "mqtt://mesh:secret-1@127.0.0.1:1"
    )
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.output
    assert "secret-1" not in result.output
    assert not file.exists()


@pytest.mark.rule("homeassistant-12")
def test_remove_clears_only_what_the_service_has_published(broker: Mosquitto) -> None:
    config = b'{"availability":[{"topic":"meshfleet/status"}],"components":{"8800":{"platform":"sensor"}}}'
    ours = {
        "homeassistant/device/meshfleet_ca5bda180004/config": config,
        "homeassistant/sensor/meshfleet_ca5bda180006/8800/config": config,
        "meshfleet/ca5bda180004/availability": b"online",
        "meshfleet/ca5bda180004/state": b"{}",
        "meshfleet/status": b"online",
    }
    others = {
        "homeassistant/device/meshfleet_ca5bda180008/config": config.replace(b"meshfleet/", b"other/"),
        "homeassistant/sensor/0x1234/battery/config": b"{}",
        "zigbee2mqtt/lamp": b"{}",
    }
    with PahoListener(broker) as listener:
        for topic, payload in {**ours, **others}.items():
            listener.publish_retained(topic, payload)
        arguments = ("homeassistant", "remove", "--homeassistant-broker", broker_url(broker), "--json")
        result = run_command(*arguments)
        assert result.exit_code == 0, result.output
        assert json.loads(result.output) == {"removed": 2}
    with PahoListener(broker) as listener:
        listener.publish("end")
        assert {each.topic for each in listener.receive_until("end")} == others.keys()


@pytest.mark.rule("homeassistant-12")
def test_remove_says_how_to_do_it_with_the_embedded_broker() -> None:
    result = run_command("homeassistant", "remove", "--homeassistant-broker", "embedded")
    assert result.exit_code == 1
    assert "meshfleet reload" in result.output
    assert run_command("homeassistant", "remove", "--homeassistant-broker", "off").exit_code == 2
