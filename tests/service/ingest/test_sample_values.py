"""Conversion of all kinds of reports and values to samples."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from meshfleet.db.samples import NO_SEQ, SampleExtras, SampleKind, StoredSample
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Identifier, IdentifierName
from tests.service.ingest.ingest_harness import NOON, IngestHarness
from tests.service.ingest.messages import A, build_raw_report, build_report, mac_to_number, prop

pytestmark = pytest.mark.anyio

DEEP = "[" * 120 + "]" * 120

DECODED: dict[str, tuple[float | None, str | None]] = {
    "21.5": (21.5, None),
    "21": (21, None),
    "-0.0": (-0.0, None),
    "1e308": (1e308, None),
    "5e-324": (5e-324, None),
    "9007199254740992": (2**53, None),
    "-9007199254740992": (-(2**53), None),
    "9007199254740993": (None, "9007199254740993"),
    "-9007199254740993": (None, "-9007199254740993"),
    "18446744073709551616": (None, "18446744073709551616"),
    "-123456789012345678901234567890": (None, "-123456789012345678901234567890"),
    "true": (1, "true"),
    "false": (0, "false"),
    "null": (None, "null"),
    '""': (None, '""'),
    '"ok"': (None, '"ok"'),
    '"21.5"': (None, '"21.5"'),
    r'"a\u0000b"': (None, r'"a\u0000b"'),
    r'"\ud83d\ude00"': (None, '"\U0001f600"'),
    '{"x":1,"y":[2,null]}': (None, '{"x":1,"y":[2,null]}'),
    "[]": (None, "[]"),
    DEEP: (None, DEEP),
}
"""JSON values, and the number and text under which they are stored."""


def format_value(sample: StoredSample) -> tuple[Any, ...]:
    """Return the stored value as text, in which -0.0 differs from 0.0."""
    extras = sample.more or SampleExtras()
    return repr(None if sample.number is None else float(sample.number)), extras.text


@pytest.mark.rule("report-51")
async def test_every_json_value_is_stored_unchanged(harness: IngestHarness) -> None:
    messages = [
        build_raw_report("measurement-decoded/temperature", NOON - index, f'"seq":{index},"value":{text}')
        for index, text in enumerate(DECODED)
    ]
    await harness.commit(*messages)
    values = {sample.seq: format_value(sample) for sample in await harness.samples()}
    assert [values.get(index) for index in range(len(DECODED))] == [
        (repr(None if value is None else float(value)), text) for value, text in DECODED.values()
    ]
    assert harness.rejects() == []


@pytest.mark.parametrize("value", [r'"\ud800"', r'"\udc00x"', "1e400", "NaN", "[" * 130 + "]" * 130, "'a'"])
async def test_values_that_are_not_portable_json_are_rejected(
    sqlite_harness: IngestHarness, value: str
) -> None:
    await sqlite_harness.commit(
        build_raw_report("measurement-decoded/temperature", NOON, f'"seq":1,"value":{value}')
    )
    assert await sqlite_harness.samples() == []
    assert len(sqlite_harness.rejects()) == 1


async def test_extensions_are_stored_with_the_value(harness: IngestHarness) -> None:
    ext = {"a": [1, {"b": None}], "huge": 2**70, "nul\0": "\0"}
    await harness.commit(
        build_report("property-decoded/motion", NOON, value=1, ext=ext),
        build_report("measurement-decoded/temperature", NOON, value=2.5, ext={}, seq=0),
        build_report("event-decoded/pressed", NOON, ext={"x": 1}, seq=255),
    )
    samples = {sample.kind: sample for sample in await harness.samples()}
    motion, temperature, pressed = (samples[kind] for kind in (0, 1, 3))
    assert motion.more is not None
    assert motion.more.ext is not None
    assert (motion.number, motion.seq, motion.more.text) == (1, NO_SEQ, None)
    assert msgspec.json.decode(motion.more.ext) == ext
    assert (temperature.number, temperature.seq, temperature.more) == (2.5, 0, SampleExtras(ext="{}"))
    assert (pressed.number, pressed.seq, pressed.more) == (
        None,
        255,
        SampleExtras(text="null", ext='{"x":1}'),
    )


async def test_an_event_needs_no_value(harness: IngestHarness) -> None:
    await harness.commit(
        build_report("event/8113", NOON, seq=1),
        build_report("event-decoded/watchdog-reset-event", NOON, seq=2),
        build_report("event/8113", NOON, seq=3, value=""),
    )
    first, second, third = await harness.samples()
    assert {(event.kind, event.identifier) for event in (first, second, third)} == {
        (SampleKind.EVENT, 0x8113)
    }
    assert (first.number, first.raw, first.more) == (None, None, None)
    assert (second.number, second.raw, second.more) == (None, None, None)
    assert (third.number, third.raw) == (None, b"")


RAW: dict[str, tuple[str, float | None, SampleExtras | None]] = {
    "measurement/8800": ("f830", -20.0, None),
    "measurement/8801": ("3c64a1c0", 1013.227968, None),
    "property/8810": ("10", 16, None),
    "property/8813": ("ffffffff", 2**32 - 1, None),
    "property/9800": ("01", 1, SampleExtras(text="true")),
    "property/8001": ("010203", None, SampleExtras(text='"1.2.3"')),
    "property/8110": ("02", None, SampleExtras(text='"connected"')),
    "property/8003": ("c0ffee0000a1", None, SampleExtras(text='"c0ffee0000a1"')),
    "property/9820": ("00ff", None, None),  # unknown layout
    "property/fedc7f": ("00ff", None, None),  # unknown identifier
}


@pytest.mark.rule("report-45")
async def test_raw_values_are_decoded_and_stored_with_their_bytes(harness: IngestHarness) -> None:
    await harness.commit(
        *(build_report(suffix, NOON, value=raw, seq=7) for suffix, (raw, _, _) in RAW.items())
    )
    samples = {(sample.kind, sample.identifier): sample for sample in await harness.samples()}
    assert len(samples) == len(RAW)
    kinds = {"property": SampleKind.PROPERTY, "measurement": SampleKind.MEASUREMENT}
    for suffix, (raw, value, extras) in RAW.items():
        kind, identifier = suffix.split("/")
        sample = samples[kinds[kind], int(identifier, 16)]
        assert (sample.number, sample.raw, sample.more) == (value, bytes.fromhex(raw), extras), suffix
        assert (sample.time, sample.seq, sample.gateway) == (NOON, 7, mac_to_number(A)), suffix


@pytest.mark.rule("report-45")
async def test_an_undecodable_raw_value_is_stored_as_bytes(harness: IngestHarness) -> None:
    undecodable = {"8800": "ff", "9800": "02", "8110": "09", "8001": "01", "8003": "c0ff"}
    await harness.commit(
        *(build_report(f"property/{identifier}", NOON, value=raw) for identifier, raw in undecodable.items())
    )
    stored = {
        sample.identifier: (sample.number, sample.raw, sample.more) for sample in await harness.samples()
    }
    assert stored == {
        int(identifier, 16): (None, bytes.fromhex(raw), None) for identifier, raw in undecodable.items()
    }
    assert harness.rejects() == []


@pytest.mark.rule("report-45")
async def test_bytes_after_a_raw_value_are_its_extension(harness: IngestHarness) -> None:
    await harness.commit(
        build_report("measurement/8800", NOON, value="00C8ABCD", seq=1),
        build_report("property/8810", NOON, value="200000000701", seq=1),
    )
    motion, temperature = await harness.samples()
    assert (temperature.number, temperature.raw) == (2.0, bytes.fromhex("00c8abcd"))
    assert (motion.number, motion.raw) == (32, bytes.fromhex("200000000701"))
    assert motion.more == SampleExtras(ext='{"transitionCounter":7,"isTransition":true}')
    assert temperature.more is not None
    assert temperature.more.ext is not None
    assert "abcd" in temperature.more.ext.lower()


async def test_measurement_errors_are_stored_without_a_value(harness: IngestHarness) -> None:
    await harness.commit(
        build_report("measurement-error/8800", NOON, seq=1, error=9),
        build_report("measurement-error/humidity", NOON, seq=2, error=-(2**53), errorExt=2**53),
        build_report("measurement-error-decoded/light-intensity", NOON, seq=3, error=8, errorExt=0),
    )
    samples = await harness.samples()
    assert {sample.kind for sample in samples} == {SampleKind.MEASUREMENT_ERROR}
    assert [(sample.identifier, sample.seq, sample.number, sample.more) for sample in samples] == [
        (0x8800, 1, None, SampleExtras(error=9)),
        (0x8802, 2, None, SampleExtras(error=-(2**53), error_ext=2**53)),
        (0x8803, 3, None, SampleExtras(error=8, error_ext=0)),
    ]
    assert harness.ingest.counters.reports == {"measurement-error": 1, "measurement-error-decoded": 2}


async def test_names_outside_the_catalogue_get_a_number_and_are_stored(harness: IngestHarness) -> None:
    names = ["soil moisture", "倉庫", "\U0001f600", "x" * 128]
    await harness.commit(*(prop(f"{name}", NOON, 1.5) for name in names))
    await harness.commit(build_report(f"measurement-error-decoded/{names[0]}", NOON, seq=1, error=1))
    numbers = [identifier_to_int(IdentifierName(name)) for name in names]
    assert max(numbers) < 0
    assert harness.foreign_names() == dict(zip(numbers, names, strict=True))
    stored = [(sample.kind, sample.identifier) for sample in await harness.samples()]
    assert sorted(stored) == sorted([(0, number) for number in numbers] + [(2, numbers[0])])


@pytest.mark.rule("id-8", "id-32")
async def test_raw_values_of_unknown_identifiers_are_stored_under_their_own_number(
    harness: IngestHarness,
) -> None:
    unlisted = [
        Identifier(text) for text in ("beef", "9999", "80ff", "0080ff", "000080ff", "ef", "00ef", "ffffffff")
    ]
    await harness.commit(
        *(build_report(f"event/{identifier}", NOON, seq=1, value="0a") for identifier in unlisted)
    )
    await harness.commit(
        *(build_report(f"measurement-error/{identifier}", NOON, seq=1, error=9) for identifier in unlisted)
    )
    await harness.commit(*(build_report(f"property/{identifier}", NOON, value="") for identifier in unlisted))
    assert harness.rejects() == []
    samples = await harness.samples()
    numbers = sorted(identifier_to_int(identifier) for identifier in unlisted)
    for kind in (SampleKind.EVENT, SampleKind.MEASUREMENT_ERROR, SampleKind.PROPERTY):
        assert [sample.identifier for sample in samples if sample.kind == kind] == numbers
    assert {(sample.number, sample.raw) for sample in samples if sample.kind == SampleKind.EVENT} == {
        (None, b"\n")
    }


async def test_names_of_the_catalogue_are_not_stored(sqlite_harness: IngestHarness) -> None:
    await sqlite_harness.commit(
        prop("motion", NOON, 1), build_report("measurement-decoded/temperature", NOON, value=1, seq=1)
    )
    assert sqlite_harness.foreign_names() == {}
