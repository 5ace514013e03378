"""docs/guides/emulator.md: commands, programs, tables and outputs match the emulated gateway."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import fields

from meshfleet.cli import main
from meshfleet.emulator import (
    EmulatorSettings,
    Faults,
    GatewayEmulator,
    SimulatedClock,
    SimulatedMesh,
    describe_site,
    generate_site,
    parse_site,
)
from meshfleet.emulator.simulation.products import (
    GATEWAY_PRODUCT,
    PRODUCTS,
    PRODUCTS_BY_CODE,
    DeviceMode,
    ProductProfile,
)
from meshfleet.emulator.simulation.site_file import DEVICE_FIELDS, SITE_FIELDS
from meshfleet.protocol.ids import Mac, Version
from meshfleet.protocol.products import UpdateMethod

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "emulator.md").read_text()
MAC = Mac("d0cf5e000001")
SENSOR = "ca5bda1a0004"

MEASUREMENT_NAMES = {
    "8800": "temperature",
    "8801": "pressure",
    "8802": "humidity",
    "8803": "light",
    "8813": "minutes in motion",
}
OTHER_MODES = (DeviceMode.UNCONNECTED, DeviceMode.STORAGE, DeviceMode.DFU)
METHOD_NAMES = {
    UpdateMethod.DOWNLOAD: "download",
    UpdateMethod.BROADCAST: "broadcast",
    UpdateMethod.NORDIC_DFU: "Nordic DFU",
}

FOLLOW_UP_ROWS = {"the same again at once": None, "a read meanwhile": f"ask {SENSOR}/read/8100 '{{}}'"}
"""Rows that continue the row before, and the request that they send; None repeats it."""

DESCRIBED_ONLY = "mosquitto_pub "
"""Beginning of the row whose response is only described."""


def find_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def find_table(first_column: str) -> list[list[str]]:
    """Return the rows of the table whose first column has this title."""
    tables = re.findall(rf"^\| {re.escape(first_column)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert len(tables) == 1, first_column
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in tables[0].splitlines()]


def find_code(text: str) -> list[str]:
    return re.findall(r"`([^`]*)`", text)


def run_gateway(**settings: Any) -> GatewayEmulator:
    """Run the gateway of the page for 40 seconds of simulated time."""
    site = generate_site(MAC, devices=10, seed=1)
    gateway = GatewayEmulator(EmulatorSettings(mac=MAC, **settings), site, SimulatedClock(1_790_000_000_000))
    gateway.advance(40.0)
    return gateway


def send(gateway: GatewayEmulator, command: str, t: float = 40.0, *, seconds: float = 15.0) -> dict[str, Any]:
    """Send the request of an `ask` line, and return its response."""
    _, topic, payload = shlex.split(command.replace("$G", MAC))
    gateway.receive(f"mt/gateway/{MAC}/request/{topic}", payload.encode(), t)
    response_topic = f"mt/gateway/{MAC}/response/{topic}"
    payloads = [each.payload for each in gateway.advance(t + seconds) if each.topic == response_topic]
    assert len(payloads) == 1, command
    return dict(json.loads(payloads[0]))


def find_differences(documented: str, response: dict[str, Any]) -> dict[str, Any]:
    """Return the fields in which a documented response differs from the real one. A text may end with …."""
    differences = {}
    for name, value in json.loads(f"{{{documented}}}").items():
        real = response.get(name)
        is_prefix = isinstance(value, str) and value.endswith("…") and str(real).startswith(value[:-1])
        if real != value and not is_prefix:
            differences[name] = (value, real)
    return differences


# Programs and commands


def test_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = find_blocks("python")
    assert programs
    for program in programs:
        (tmp_path / "program.py").write_text(program)
        runpy.run_path("program.py")


def test_commands_can_be_parsed() -> None:
    lines = re.findall(r"^    (?:.* )?\.venv/bin/meshfleet ([^|#\n]*)", PAGE, re.MULTILINE)
    assert lines
    for line in lines:
        name, *arguments = shlex.split(line)
        command = main.get_command(click.Context(main), name)
        assert command is not None, line
        command.make_context(name, arguments)


def test_all_options_exist() -> None:
    context = click.Context(main)
    options = {
        option
        for name in main.list_commands(context)
        if (command := main.get_command(context, name)) is not None
        for parameter in command.params
        for option in parameter.opts
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) <= options


# Reports and responses


def test_the_documented_first_reports_match() -> None:
    gateway = GatewayEmulator(
        EmulatorSettings(mac=MAC), generate_site(MAC, devices=10, seed=1), SimulatedClock(1_790_000_000_000)
    )
    documented = re.findall(rf"^    (mt/gateway/{MAC}/device/\S+) (\{{.*\}})$", PAGE, re.MULTILINE)
    assert documented
    published = [(each.topic, json.loads(each.payload)) for each in gateway.advance(10.0)]
    assert list(_without_times(published))[: len(documented)] == list(
        _without_times((topic, json.loads(text)) for topic, text in documented)
    )


def _without_times(messages: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for topic, content in messages:
        yield topic, {name: value for name, value in content.items() if name != "time"}


def test_the_first_response_matches_in_both_versions() -> None:
    command = f'ask {SENSOR}/read/8100 \'{{"id":"1"}}\''
    (new,) = re.findall(r"^    mt/gateway/\S+/response/\S+ \{([^}]*)\}$", PAGE, re.MULTILINE)
    (old,) = re.findall(r"^    \{(\"time\"[^}]*)\}$", PAGE, re.MULTILINE)
    for documented, settings in ((new, {}), (old, {"api_version": Version.parse("1.2.0")})):
        response = send(run_gateway(**settings), command)
        assert set(find_differences(documented, response)) == {"time"}
        assert set(json.loads(f"{{{documented}}}")) == set(response)
    level = int(json.loads(f"{{{new}}}")["value"], 16)
    assert f"0x{level:02x} is {level} %" in PAGE


def test_the_documented_responses_match() -> None:
    gateway, command, differences = run_gateway(), "", {}
    for title, text in find_table("send"):
        if title.startswith(f"`{DESCRIBED_ONLY}"):
            continue
        if title in FOLLOW_UP_ROWS:
            command = FOLLOW_UP_ROWS[title] or command
            response = send(gateway, command, 41.0)
        else:
            gateway, command = run_gateway(), find_code(title)[0]
            response = send(gateway, command, seconds=1.0)
        if difference := find_differences(find_code(text)[0], response):
            differences[title] = difference
    assert differences == {}


def test_the_documented_responses_to_requests_with_keys_match() -> None:
    pairs = re.findall(r"^    (ask .*)\n    # (\"status\".*)$", PAGE, re.MULTILINE)
    assert pairs
    assert {
        command: find_differences(documented, send(run_gateway(), command)) for command, documented in pairs
    } == {sent: {} for sent, _ in pairs}


# The simulated site


def test_the_described_site_is_the_generated_one() -> None:
    documented, _ = map(json.loads, find_blocks("json"))
    site = generate_site(MAC, devices=10, seed=1)
    real = json.loads(json.dumps(describe_site(site, SimulatedMesh(site))))
    assert documented.keys() == real.keys()
    assert documented["walls"] == real["walls"]
    assert [each for each in documented["devices"] if each not in real["devices"]] == []


def test_the_example_of_a_site_file_can_be_used() -> None:
    _, text = find_blocks("json")
    site = parse_site(text.encode(), source="the page", gateway=MAC, seed=1)
    assert len(site.devices) == len(json.loads(text)["devices"])


def test_all_fields_of_a_site_file_are_documented() -> None:
    documented = {name for row in find_table("field") for name in find_code(row[0])}
    assert documented == {*SITE_FIELDS, *DEVICE_FIELDS}  # none is missing, and none is undocumented


def test_the_table_of_products_is_complete() -> None:
    assert find_table("model") == [_build_row(product) for product in (GATEWAY_PRODUCT, *PRODUCTS)]


def _build_row(product: ProductProfile) -> list[str]:
    other_modes = [each for each in OTHER_MODES if each in product.modes - {product.default_mode}]
    methods = [name for method, name in METHOD_NAMES.items() if method in product.update_methods]
    return [
        next(code for code, each in PRODUCTS_BY_CODE.items() if each is product),
        product.name,
        product.role.name.lower(),
        product.default_mode.name.lower(),
        ", ".join(each.name.lower() for each in other_modes),
        ", ".join(MEASUREMENT_NAMES[each] for each in product.measurements),
        "yes" if product.has_button else "",
        "yes" if product.motion_code else "",
        str(product.firmware),
        "all three" if len(methods) == len(METHOD_NAMES) else ", ".join(methods),
    ]


def test_the_table_of_faults_is_complete() -> None:
    assert [find_code(row[0]) for row in find_table("name")] == [
        [field.encode_name] for field in fields(Faults)
    ]
