"""The plan of publications: changes of devices, of their values and of the broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from meshfleet.db.samples.sample import NO_SEQ, ClockFlag, SampleExtras, SampleKind
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Identifier, Mac
from meshfleet.service.homeassistant.plan import MOVE_INTERVAL_MS
from meshfleet.service.homeassistant.state import ShownIdentifiers, apply_rows, build_state
from tests.row_tables import each_row
from tests.service.homeassistant.discovery_rules import check_device_message
from tests.service.homeassistant.fleets import (
    COLD_ROOM,
    FIGURES,
    GATEWAY,
    SHOWN,
    TOPICS,
    build_device,
    build_plan,
    build_published_plan,
    build_row,
    take_all,
    to_number,
)

STATE = "meshfleet/ca5bda180004/state"
AVAILABILITY = "meshfleet/ca5bda180004/availability"
CONFIG = "homeassistant/device/meshfleet_ca5bda180004/config"
OTHER_GATEWAY = replace(GATEWAY, mac=Mac("02005e000002"))


def build_fleet(device: Any = COLD_ROOM, **figures: Any) -> dict[int, Any]:
    return {
        to_number(GATEWAY): build_device(GATEWAY),
        to_number(OTHER_GATEWAY): build_device(OTHER_GATEWAY),
        to_number(): build_device(device, **figures),
    }


@pytest.mark.rule("homeassistant-5")
@each_row(
    ("name", "value", "text", "shown"),
    [
        ("temperature", 4.25, None, 4.25),
        ("battery-level", 87, None, 87),
        ("battery-level", 255, None, None),
        ("motion", 0, None, "OFF"),
        ("motion", 16, None, "ON"),
        ("alarm", 1, "true", "ON"),
        ("alarm", 0, "false", "OFF"),
        ("priority", 0, "false", "OFF"),
        ("reset-cause", 2, None, "watchdog"),
        ("reset-cause", 3, None, "other"),
        ("device-mode", None, '"connected"', "connected"),
        ("device-mode", None, '"unheard-of"', None),
        ("tx-power", -8, None, -8),
        ("temperature", None, '"wet"', None),
        ("temperature", None, '{"a":[1]}', None),
        ("motion", None, "[1]", None),
    ],
)
def test_values_are_converted_for_their_entities(
    name: str, value: float | None, text: str | None, shown: Any
) -> None:
    plan = build_published_plan()
    plan.apply_rows(
        to_number(), [build_row(name, value, 2000, extras=SampleExtras(text=text) if text else None)]
    )
    ((topic, payload),) = [each for each in take_all(plan) if each[0] == STATE] or [(STATE, b"{}")]
    assert topic == STATE
    assert json.loads(payload).get(name, 4.25) == shown


@pytest.mark.rule("homeassistant-5")
def test_the_newest_plausible_value_is_shown() -> None:
    values: dict[str, Any] = {}
    rows = [
        build_row("temperature", 1.0, 5000),
        build_row("temperature", 2.0, 4000),
        build_row("temperature", 3.0, 9000, extras=SampleExtras(clock=ClockFlag.FUTURE)),
        build_row("temperature", 4.0, 1000, extras=SampleExtras(clock=ClockFlag.CORRECTED, shift=6000)),
        build_row("temperature", None, 8000, SampleKind.MEASUREMENT_ERROR),
    ]
    assert apply_rows(values, rows, SHOWN) == []
    assert [(each.time, each.value) for each in values.values()] == [(7000, 4.0)]


@pytest.mark.rule("homeassistant-5")
def test_the_state_of_a_device_has_its_firmware_and_signal_strength() -> None:
    state = json.loads(build_state({}, FIGURES, "3.4.1", SHOWN, earlier={"alarm": None}))
    update = {"installed_version": "3.4.1", "latest_version": "3.5.0"}
    assert state == {"alarm": None, "rssi": -61, "firmware": update}
    older = replace(FIGURES, latest_firmware="3.4.1-beta.2")
    state = json.loads(build_state({}, older, "3.4.1", SHOWN, earlier={}))
    assert state["firmware"]["latest_version"] == "3.4.1"


def test_an_identifier_of_the_users_own_table_is_decoded() -> None:
    table = """id | name | dictionary | kind | type | unit | access | ext | homeassistant | note
beef | radiation | - | measurement | u16/100 | mSv | r | | sensor measurement |"""
    shown = ShownIdentifiers(BUILTIN_CATALOGUE.extended(table, "my.table"))
    values: dict[str, Any] = {}
    number = identifier_to_int(Identifier("beef"))
    row = (1, SampleKind.MEASUREMENT, number, NO_SEQ, 1, None, b"\x01\x00", None)
    apply_rows(values, [row], shown)
    assert json.loads(build_state(values, FIGURES, None, shown, earlier={}))["radiation"] == 2.56


@pytest.mark.rule("homeassistant-6")
def test_availability_and_states_come_before_discovery() -> None:
    plan = build_published_plan()
    plan.republish_all()
    topics = [topic for topic, _ in take_all(plan)]
    assert topics == [
        "meshfleet/02005e000001/availability",
        "meshfleet/02005e000001/state",
        AVAILABILITY,
        STATE,
        "meshfleet/status",
        "homeassistant/device/meshfleet_02005e000001/config",
        CONFIG,
    ]
    assert take_all(plan) == []


@pytest.mark.rule("homeassistant-6")
def test_the_number_of_messages_at_once_is_limited() -> None:
    plan = build_published_plan()
    plan.republish_all()
    taken = [len(plan.take_queued(2)) for _ in range(4)]
    assert taken == [2, 2, 2, 1]


@pytest.mark.rule("homeassistant-5")
def test_only_the_newest_state_is_published() -> None:
    plan = build_published_plan()
    for value in range(10):
        plan.apply_rows(to_number(), [build_row("temperature", value, 2000 + value)])
    ((topic, payload),) = take_all(plan)
    assert (topic, json.loads(payload)["temperature"]) == (STATE, 9)
    plan.apply_rows(to_number(), [build_row("temperature", 9, 3000)])
    assert take_all(plan) == []


@pytest.mark.rule("homeassistant-7")
def test_a_renamed_device_is_discovered_again() -> None:
    plan = build_published_plan()
    plan.update_fleet(build_fleet(replace(COLD_ROOM, name="Freezer")), 1)
    (payload,) = [payload for topic, payload in take_all(plan) if topic == CONFIG]
    assert check_device_message(payload)["device"]["name"] == "Freezer"


@pytest.mark.rule("homeassistant-7")
def test_a_new_identifier_is_in_the_state_before_it_is_discovered() -> None:
    plan = build_published_plan()
    plan.apply_rows(to_number(), [build_row("humidity", 40)])
    messages = take_all(plan)
    assert [topic for topic, _ in messages] == [AVAILABILITY, STATE, CONFIG]
    assert json.loads(messages[1][1])["humidity"] == 40
    assert "8802" in json.loads(messages[2][1])["components"]


@pytest.mark.rule("homeassistant-7")
def test_a_move_to_another_gateway_is_published_at_most_once_an_hour() -> None:
    def get_vias() -> list[str]:
        return [json.loads(each)["device"]["via_device"] for topic, each in take_all(plan) if topic == CONFIG]

    plan = build_published_plan()
    moved = replace(COLD_ROOM, via=OTHER_GATEWAY.mac)
    for number in plan.update_fleet(build_fleet(), 0):
        plan.add_history(number, [])
    take_all(plan)
    plan.update_fleet(build_fleet(moved), MOVE_INTERVAL_MS - 1)
    assert get_vias() == []
    plan.update_fleet(build_fleet(moved), MOVE_INTERVAL_MS)
    assert get_vias() == ["meshfleet_02005e000002"]
    plan.update_fleet(build_fleet(), MOVE_INTERVAL_MS + 1)
    assert get_vias() == []


@pytest.mark.rule("homeassistant-5")
def test_a_disconnected_device_is_offline_at_once() -> None:
    plan = build_published_plan()
    plan.update_fleet(build_fleet(connected=False), 1)
    assert (AVAILABILITY, b"offline") in take_all(plan)


@pytest.mark.rule("homeassistant-7")
@each_row("form", ["device", "entity"])
def test_a_forgotten_device_is_removed_from_all_topics(form: str) -> None:
    plan = build_published_plan(form)
    plan.republish_all()
    topics = {topic for topic, _ in take_all(plan) if "ca5bda180004" in topic}
    plan.update_fleet({to_number(GATEWAY): build_device(GATEWAY)}, 1)
    removed = take_all(plan)
    assert {topic for topic, _ in removed} == topics
    assert all(payload == b"" for _, payload in removed)
    assert removed[0][0].startswith("homeassistant/")
    plan.apply_rows(to_number(), [build_row("temperature", 1, 9000)])
    assert take_all(plan) == []


@pytest.mark.rule("homeassistant-7")
def test_an_entity_that_is_gone_is_removed_once() -> None:
    before = build_published_plan(with_commands=True)
    before.apply_rows(to_number(), [build_row("tx-power", 4)])
    plan = build_plan()
    for topic, payload in take_all(before):
        plan.record_published(topic, payload)
    for number in plan.update_fleet({to_number(): build_device()}, 0):
        plan.add_history(number, [build_row("temperature", 1)])
    first, second = (payload for topic, payload in take_all(plan) if topic == CONFIG)
    assert check_device_message(first)["components"]["9802"] == {"platform": "number"}
    assert check_device_message(first)["components"]["8300"] == {"platform": "button"}
    assert not {"9802", "8300"} & check_device_message(second)["components"].keys()
    plan.republish_all()
    assert [topic for topic, _ in take_all(plan)].count(CONFIG) == 1


@pytest.mark.rule("homeassistant-8")
@each_row("form", ["device", "entity"])
def test_what_an_earlier_process_published_is_known_from_the_broker(form: str) -> None:
    before = build_published_plan(form)
    before.republish_all()
    plan = build_plan(form)
    published = take_all(before)
    for topic, payload in published:
        plan.record_published(topic, payload)
    for number in plan.update_fleet({to_number(): build_device()}, 0):
        plan.add_history(number, [])
    plan.republish_all()
    messages = dict(take_all(plan))
    assert json.loads(messages[STATE])["temperature"] == 4.25  # nothing newer is known
    gateway_topics = {topic for topic, _ in published if "02005e000001" in topic}
    assert {topic for topic, payload in messages.items() if not payload} == gateway_topics
    assert {topic for topic, _ in published} == messages.keys()


@pytest.mark.rule("homeassistant-8")
@each_row(
    ("topic", "payload"),
    [
        (CONFIG, b'{"availability":[{"topic":"other/status"}],"components":{}}'),
        (CONFIG, b"{"),
        (CONFIG, b"\xff"),
        (CONFIG, b"[" * 100_000),
        (CONFIG, b'{"availability":[{"topic":"meshfleet/status"}],"components":[]}'),
        ("homeassistant/device/zigbee_ca5bda180004/config", b"{}"),
        ("homeassistant/sensor/meshfleet_nonsense/1/config", b"{}"),
        ("meshfleet/nonsense/state", b"{}"),
        ("other/ca5bda180004/state", b"{}"),
    ],
)
def test_messages_of_others_are_left_alone(topic: str, payload: bytes) -> None:
    plan = build_plan()
    plan.record_published(topic, payload)
    plan.remove_all()
    assert take_all(plan) == []


@pytest.mark.rule("homeassistant-8")
def test_a_malformed_state_at_the_broker_is_replaced() -> None:
    plan = build_plan()
    for payload in (b"[1]", b'{"temperature":{"a":1},"alarm":"' + b"x" * 300 + b'"}', b"{" * 100_000):
        plan.record_published(STATE, payload)
    plan.record_published(STATE, b'{"temperature":{"a":1}}')
    for number in plan.update_fleet({to_number(): build_device()}, 0):
        plan.add_history(number, [build_row("alarm", 0)])
    assert json.loads(dict(take_all(plan))[STATE])["alarm"] == "OFF"


def test_topics_name_devices_only_in_their_own_form() -> None:
    parse = TOPICS.parse_command
    command = parse("meshfleet/ca5bda180004/set/alarm")
    assert command is not None
    assert (command.mac, command.name) == ("ca5bda180004", "alarm")
    others = (
        "meshfleet/ca5bda180004/set",
        "meshfleet/x/set/alarm",
        "other/ca5bda180004/set/alarm",
        "meshfleet",
    )
    assert [parse(topic) for topic in others] == [None] * len(others)
