"""docs/guides/emulator.md shows what the emulated gateway does, to the letter."""

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

MEASURES = {
    "8800": "temperature",
    "8801": "pressure",
    "8802": "humidity",
    "8803": "light",
    "8813": "minutes in motion",
}
OTHER_MODES = (DeviceMode.UNCONNECTED, DeviceMode.STORAGE, DeviceMode.DFU)
WAYS = {
    UpdateMethod.DOWNLOAD: "download",
    UpdateMethod.BROADCAST: "broadcast",
    UpdateMethod.NORDIC_DFU: "Nordic DFU",
}

FOLLOWING = {"the same again at once": None, "a read meanwhile": f"ask {SENSOR}/read/8100 '{{}}'"}
"""Rows that go on from the row before, and what they send; None: the same."""

PROSE = "mosquitto_pub "
"""Begins the row whose answer is told in words alone."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def table(first: str) -> list[list[str]]:
    """The rows of the table whose first column is called so."""
    found = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert len(found) == 1, first
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[0].splitlines()]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]*)`", text)


def run_gateway(**settings: Any) -> GatewayEmulator:
    """The gateway of the page, after as long as somebody takes to read so far."""
    site = generate_site(MAC, devices=10, seed=1)
    gateway = GatewayEmulator(EmulatorSettings(mac=MAC, **settings), site, SimulatedClock(1_790_000_000_000))
    gateway.advance(40.0)
    return gateway


def answer(gateway: GatewayEmulator, sent: str, t: float = 40.0, *, wait: float = 15.0) -> dict[str, Any]:
    """Send what an `ask` line sends; gives the answer to it."""
    _, topic, payload = shlex.split(sent.replace("$G", MAC))
    gateway.receive(f"mt/gateway/{MAC}/request/{topic}", payload.encode(), t)
    wanted = f"mt/gateway/{MAC}/response/{topic}"
    found = [each.payload for each in gateway.advance(t + wait) if each.topic == wanted]
    assert len(found) == 1, sent
    return dict(json.loads(found[0]))


def differences(shown: str, answered: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of an answer and is not so; a text that ends with … goes on."""
    wrong = {}
    for name, value in json.loads(f"{{{shown}}}").items():
        real = answered.get(name)
        begins = isinstance(value, str) and value.endswith("…") and str(real).startswith(value[:-1])
        if real != value and not begins:
            wrong[name] = (value, real)
    return wrong


# Programs and commands


def test_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = blocks("python")
    assert programs
    for program in programs:
        (tmp_path / "program.py").write_text(program)
        runpy.run_path("program.py")


def test_commands_are_understood() -> None:
    lines = re.findall(r"^    (?:.* )?\.venv/bin/meshfleet ([^|#\n]*)", PAGE, re.MULTILINE)
    assert lines
    for line in lines:
        name, *arguments = shlex.split(line)
        command = main.get_command(click.Context(main), name)
        assert command is not None, line
        command.make_context(name, arguments)


def test_options_exist() -> None:
    context = click.Context(main)
    known = {
        option
        for name in main.list_commands(context)
        if (command := main.get_command(context, name)) is not None
        for parameter in command.params
        for option in parameter.opts
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) <= known


# Reports and answers


def test_the_first_reports_are_those_of_the_gateway() -> None:
    gateway = GatewayEmulator(
        EmulatorSettings(mac=MAC), generate_site(MAC, devices=10, seed=1), SimulatedClock(1_790_000_000_000)
    )
    shown = re.findall(rf"^    (mt/gateway/{MAC}/device/\S+) (\{{.*\}})$", PAGE, re.MULTILINE)
    assert shown
    published = [(each.topic, json.loads(each.payload)) for each in gateway.advance(10.0)]
    assert list(_without_times(published))[: len(shown)] == list(
        _without_times((topic, json.loads(text)) for topic, text in shown)
    )


def _without_times(messages: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for topic, content in messages:
        yield topic, {name: value for name, value in content.items() if name != "time"}


def test_the_first_answer_is_the_one_shown_in_both_versions() -> None:
    sent = f'ask {SENSOR}/read/8100 \'{{"id":"1"}}\''
    (new,) = re.findall(r"^    mt/gateway/\S+/response/\S+ \{([^}]*)\}$", PAGE, re.MULTILINE)
    (old,) = re.findall(r"^    \{(\"time\"[^}]*)\}$", PAGE, re.MULTILINE)
    for shown, settings in ((new, {}), (old, {"api_version": Version.parse("1.2.0")})):
        answered = answer(run_gateway(**settings), sent)
        assert set(differences(shown, answered)) == {"time"}
        assert set(json.loads(f"{{{shown}}}")) == set(answered)
    level = int(json.loads(f"{{{new}}}")["value"], 16)
    assert f"0x{level:02x} is {level} %" in PAGE


def test_requests_to_try_are_answered_as_shown() -> None:
    gateway, sent, wrong = run_gateway(), "", {}
    for send, text in table("send"):
        if send.startswith(f"`{PROSE}"):
            continue
        if send in FOLLOWING:
            sent = FOLLOWING[send] or sent
            answered = answer(gateway, sent, 41.0)
        else:
            gateway, sent = run_gateway(), quoted(send)[0]
            answered = answer(gateway, sent, wait=1.0)
        if found := differences(quoted(text)[0], answered):
            wrong[send] = found
    assert wrong == {}


def test_requests_with_keys_are_answered_as_shown() -> None:
    pairs = re.findall(r"^    (ask .*)\n    # (\"status\".*)$", PAGE, re.MULTILINE)
    assert pairs
    assert {sent: differences(shown, answer(run_gateway(), sent)) for sent, shown in pairs} == {
        sent: {} for sent, _ in pairs
    }


# The world


def test_the_described_site_is_the_made_up_one() -> None:
    shown, _ = map(json.loads, blocks("json"))
    site = generate_site(MAC, devices=10, seed=1)
    real = json.loads(json.dumps(describe_site(site, SimulatedMesh(site))))
    assert shown.keys() == real.keys()
    assert shown["walls"] == real["walls"]
    assert [each for each in shown["devices"] if each not in real["devices"]] == []


def test_the_site_of_your_own_can_be_used() -> None:
    _, text = blocks("json")
    site = parse_site(text.encode(), source="the page", gateway=MAC, seed=1)
    assert len(site.devices) == len(json.loads(text)["devices"])


def test_the_fields_of_a_site_are_those_that_are_accepted() -> None:
    shown = {name for row in table("field") for name in quoted(row[0])}
    assert shown == {*SITE_FIELDS, *DEVICE_FIELDS}  # both ways: none is kept secret


def test_the_products_are_those_that_can_be_bought() -> None:
    assert table("model") == [_row(product) for product in (GATEWAY_PRODUCT, *PRODUCTS)]


def _row(product: ProductProfile) -> list[str]:
    others = [each for each in OTHER_MODES if each in product.modes - {product.default_mode}]
    ways = [word for way, word in WAYS.items() if way in product.update_methods]
    return [
        next(code for code, each in PRODUCTS_BY_CODE.items() if each is product),
        product.name,
        product.role.name.lower(),
        product.default_mode.name.lower(),
        ", ".join(each.name.lower() for each in others),
        ", ".join(MEASURES[each] for each in product.measurements),
        "yes" if product.has_button else "",
        "yes" if product.motion_code else "",
        str(product.firmware),
        "all three" if len(ways) == len(WAYS) else ", ".join(ways),
    ]


def test_the_faults_are_those_that_can_be_made() -> None:
    assert [quoted(row[0]) for row in table("name")] == [[field.encode_name] for field in fields(Faults)]
