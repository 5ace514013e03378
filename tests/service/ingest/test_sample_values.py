"""Every kind of report becomes the right sample, whatever its value is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.db.samples import NO_SEQ, SampleExtras, SampleKind
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Identifier, IdentifierName
from tests.service.ingest.ingest_harness import NOON
from tests.service.ingest.messages import A, build_raw_report, build_report, mac_to_number, prop

if TYPE_CHECKING:
    from meshfleet.db.samples import StoredSample
    from tests.service.ingest.ingest_harness import IngestHarness

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
"""JSON as it comes, and number and text as they are kept."""


def kept(sample: StoredSample) -> tuple[Any, ...]:
    """The value of a sample as text tells it: -0.0 is not 0.0."""
    more = sample.more or SampleExtras()
    return repr(None if sample.number is None else float(sample.number)), more.text


@pytest.mark.rule("report-51")
async def test_every_json_value_is_kept_as_it_came(intake: IngestHarness) -> None:
    messages = [
        build_raw_report("measurement-decoded/temperature", NOON - place, f'"seq":{place},"value":{text}')
        for place, text in enumerate(DECODED)
    ]
    await intake.commit(*messages)
    found = {sample.seq: kept(sample) for sample in await intake.samples()}
    assert [found.get(place) for place in range(len(DECODED))] == [
        (repr(None if value is None else float(value)), text) for value, text in DECODED.values()
    ]
    assert intake.rejects() == []


@pytest.mark.parametrize("value", [r'"\ud800"', r'"\udc00x"', "1e400", "NaN", "[" * 130 + "]" * 130, "'a'"])
async def test_what_is_no_json_for_everybody_is_rejected(in_file: IngestHarness, value: str) -> None:
    await in_file.commit(
        build_raw_report("measurement-decoded/temperature", NOON, f'"seq":1,"value":{value}')
    )
    assert await in_file.samples() == []
    assert len(in_file.rejects()) == 1


async def test_extensions_are_kept_beside_the_value(intake: IngestHarness) -> None:
    ext = {"a": [1, {"b": None}], "huge": 2**70, "nul\0": "\0"}
    await intake.commit(
        build_report("property-decoded/motion", NOON, value=1, ext=ext),
        build_report("measurement-decoded/temperature", NOON, value=2.5, ext={}, seq=0),
        build_report("event-decoded/pressed", NOON, ext={"x": 1}, seq=255),
    )
    found = {sample.kind: sample for sample in await intake.samples()}
    moved, warm, pressed = (found[kind] for kind in (0, 1, 3))
    assert moved.more is not None
    assert moved.more.ext is not None
    assert (moved.number, moved.seq, moved.more.text) == (1, NO_SEQ, None)
    assert msgspec.json.decode(moved.more.ext) == ext
    assert (warm.number, warm.seq, warm.more) == (2.5, 0, SampleExtras(ext="{}"))
    assert (pressed.number, pressed.seq, pressed.more) == (
        None,
        255,
        SampleExtras(text="null", ext='{"x":1}'),
    )


async def test_an_event_needs_no_value(intake: IngestHarness) -> None:
    await intake.commit(
        build_report("event/8113", NOON, seq=1),
        build_report("event-decoded/watchdog-reset-event", NOON, seq=2),
        build_report("event/8113", NOON, seq=3, value=""),
    )
    first, second, third = await intake.samples()
    assert {(each.kind, each.identifier) for each in (first, second, third)} == {(SampleKind.EVENT, 0x8113)}
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
    "property/9820": ("00ff", None, None),  # a layout that nobody knows
    "property/fedc7f": ("00ff", None, None),  # an identifier that nobody knows
}


@pytest.mark.rule("report-45")
async def test_raw_values_are_decoded_and_their_bytes_kept(intake: IngestHarness) -> None:
    await intake.commit(*(build_report(end, NOON, value=raw, seq=7) for end, (raw, _, _) in RAW.items()))
    found = {(each.kind, each.identifier): each for each in await intake.samples()}
    assert len(found) == len(RAW)
    kinds = {"property": SampleKind.PROPERTY, "measurement": SampleKind.MEASUREMENT}
    for end, (raw, value, more) in RAW.items():
        kind, identifier = end.split("/")
        sample = found[kinds[kind], int(identifier, 16)]
        assert (sample.number, sample.raw, sample.more) == (value, bytes.fromhex(raw), more), end
        assert (sample.time, sample.seq, sample.gateway) == (NOON, 7, mac_to_number(A)), end


@pytest.mark.rule("report-45")
async def test_a_raw_value_that_does_not_fit_is_kept_without_a_meaning(intake: IngestHarness) -> None:
    misfits = {"8800": "ff", "9800": "02", "8110": "09", "8001": "01", "8003": "c0ff"}
    await intake.commit(*(build_report(f"property/{each}", NOON, value=raw) for each, raw in misfits.items()))
    found = {each.identifier: (each.number, each.raw, each.more) for each in await intake.samples()}
    assert found == {int(each, 16): (None, bytes.fromhex(raw), None) for each, raw in misfits.items()}
    assert intake.rejects() == []


@pytest.mark.rule("report-45")
async def test_what_follows_a_raw_value_is_its_extension(intake: IngestHarness) -> None:
    await intake.commit(
        build_report("measurement/8800", NOON, value="00C8ABCD", seq=1),
        build_report("property/8810", NOON, value="200000000701", seq=1),
    )
    moved, warm = await intake.samples()
    assert (warm.number, warm.raw) == (2.0, bytes.fromhex("00c8abcd"))
    assert (moved.number, moved.raw) == (32, bytes.fromhex("200000000701"))
    assert moved.more == SampleExtras(ext='{"transitionCounter":7,"isTransition":true}')
    assert warm.more is not None
    assert warm.more.ext is not None
    assert "abcd" in warm.more.ext.lower()


async def test_measurement_errors_have_a_number_in_place_of_a_value(intake: IngestHarness) -> None:
    await intake.commit(
        build_report("measurement-error/8800", NOON, seq=1, error=9),
        build_report("measurement-error/humidity", NOON, seq=2, error=-(2**53), errorExt=2**53),
        build_report("measurement-error-decoded/light-intensity", NOON, seq=3, error=8, errorExt=0),
    )
    found = await intake.samples()
    assert {each.kind for each in found} == {SampleKind.MEASUREMENT_ERROR}
    assert [(each.identifier, each.seq, each.number, each.more) for each in found] == [
        (0x8800, 1, None, SampleExtras(error=9)),
        (0x8802, 2, None, SampleExtras(error=-(2**53), error_ext=2**53)),
        (0x8803, 3, None, SampleExtras(error=8, error_ext=0)),
    ]
    assert intake.ingest.counters.reports == {"measurement-error": 1, "measurement-error-decoded": 2}


async def test_names_that_no_catalogue_has_get_a_number_and_are_remembered(intake: IngestHarness) -> None:
    names = ["soil moisture", "倉庫", "\U0001f600", "x" * 128]
    await intake.commit(*(prop(f"{name}", NOON, 1.5) for name in names))
    await intake.commit(build_report(f"measurement-error-decoded/{names[0]}", NOON, seq=1, error=1))
    numbers = [identifier_to_int(IdentifierName(name)) for name in names]
    assert max(numbers) < 0
    assert intake.foreign_names() == dict(zip(numbers, names, strict=True))
    found = [(each.kind, each.identifier) for each in await intake.samples()]
    assert sorted(found) == sorted([(0, each) for each in numbers] + [(2, numbers[0])])


@pytest.mark.rule("id-8", "id-32")
async def test_raw_values_of_identifiers_outside_the_catalogue_are_stored_each_under_its_own(
    intake: IngestHarness,
) -> None:
    unlisted = [
        Identifier(each) for each in ("beef", "9999", "80ff", "0080ff", "000080ff", "ef", "00ef", "ffffffff")
    ]
    await intake.commit(*(build_report(f"event/{each}", NOON, seq=1, value="0a") for each in unlisted))
    await intake.commit(
        *(build_report(f"measurement-error/{each}", NOON, seq=1, error=9) for each in unlisted)
    )
    await intake.commit(*(build_report(f"property/{each}", NOON, value="") for each in unlisted))
    assert intake.rejects() == []
    found = await intake.samples()
    numbers = sorted(identifier_to_int(each) for each in unlisted)
    for kind in (SampleKind.EVENT, SampleKind.MEASUREMENT_ERROR, SampleKind.PROPERTY):
        assert [each.identifier for each in found if each.kind == kind] == numbers
    assert {(each.number, each.raw) for each in found if each.kind == SampleKind.EVENT} == {(None, b"\n")}


async def test_known_names_are_not_remembered_again(in_file: IngestHarness) -> None:
    await in_file.commit(
        prop("motion", NOON, 1), build_report("measurement-decoded/temperature", NOON, value=1, seq=1)
    )
    assert in_file.foreign_names() == {}
