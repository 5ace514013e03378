"""Identifier tables: valid forms, and errors that list all mistakes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshfleet.errors.protocol import LineFault, MalformedCatalogue
from meshfleet.protocol.identifiers import (
    BUILTIN_CATALOGUE,
    DecodedValue,
    IdentifierAccess,
    IdentifierCatalogue,
    IdentifierKind,
)
from meshfleet.protocol.identifiers.catalogue import TABLE_COLUMNS, parse_identifier_table
from meshfleet.protocol.identifiers.homeassistant import EntityDefinition, EntityPlatform
from tests.row_tables import each_row

HEADER = "id | name | dictionary | kind | type | unit | access | ext | homeassistant | note"
SHORT_HEADER = HEADER.replace("homeassistant | ", "")
SOUND = "9900 | sound-level | - | measurement | u8 | dB | r | | |"
TILT = "9901 | tilt | 12 | property event | s16/10 | ° | rw | {count: u32} | | 0: upright"


def build_table(*rows: str, header: str = HEADER) -> str:
    return "\n".join((header, *rows))


def find_mistakes(text: str, existing: IdentifierCatalogue | None = None) -> list[LineFault]:
    """Return the mistakes in a table, alone or added to an existing catalogue."""
    with pytest.raises(MalformedCatalogue) as refused:
        (existing or IdentifierCatalogue([])).extended(text, "my.table")
    assert refused.value.source == "my.table"
    return [*refused.value.faults]


def build_row(**cells: str) -> str:
    """Build a valid row with these cells replaced."""
    cells_by_column = dict(zip(TABLE_COLUMNS, map(str.strip, SOUND.split("|")), strict=True))
    return " | ".join({**cells_by_column, **cells}.values())


def test_a_row_is_an_entry() -> None:
    entry = parse_identifier_table(build_table(SOUND, TILT), "my.table")[3]
    assert (entry.id, entry.name, entry.dictionary) == ("9901", "tilt", 12)
    assert entry.kinds == {IdentifierKind.PROPERTY, IdentifierKind.EVENT}
    assert (entry.type, entry.unit, entry.access, entry.note) == (
        "s16/10",
        "°",
        IdentifierAccess.READ_WRITE,
        "0: upright",
    )
    assert (entry.decode(b"\x00\x0f").value, entry.decode(bytes(6)).ext) == (1.5, {"count": 0})


@pytest.mark.rule("homeassistant-4")
def test_the_column_of_home_assistant_describes_an_entity() -> None:
    row = build_row(homeassistant="sensor sound_pressure measurement diagnostic off precision=2 unknown=255")
    entity = parse_identifier_table(build_table(row), "my.table")[2].homeassistant
    assert entity == EntityDefinition(
        platform=EntityPlatform.SENSOR,
        device_class="sound_pressure",
        state_class="measurement",
        category="diagnostic",
        is_enabled=False,
        precision=2,
        unknown=255,
    )


def test_a_table_may_leave_out_the_column_of_home_assistant() -> None:
    short = SOUND.removesuffix(" |")
    (entry,) = parse_identifier_table(build_table(short, header=SHORT_HEADER), "my.table").values()
    assert (entry.name, entry.homeassistant) == ("sound-level", None)
    assert find_mistakes(build_table(SOUND, header=SHORT_HEADER)) == [(2, "10 columns; 9 are required")]


@pytest.mark.rule("value-41")
def test_a_name_may_come_from_an_unknown_dictionary_version() -> None:
    assert [
        entry.dictionary for entry in parse_identifier_table(build_table(SOUND, TILT), "my.table").values()
    ] == [None, 12]


@each_row("access", ["r", "w", "rw", "-"])
def test_every_access_is_known(access: str) -> None:
    assert parse_identifier_table(build_table(build_row(access=access)), "my.table")[2].access == access


@each_row("kind", ["property", "measurement", "event", "command", "internal"])
def test_every_kind_is_known(kind: str) -> None:
    assert parse_identifier_table(build_table(build_row(kind=kind)), "my.table")[2].kinds == {kind}


@each_row(
    ("text", "lines"),
    [
        (HEADER, []),
        (build_table(SOUND, TILT), [2, 3]),
        (build_table(SOUND, TILT) + "\n", [2, 3]),
        (build_table("", SOUND, "   ", "# a comment", "\t# another | with | bars", TILT), [3, 7]),
        ("# first a comment\n\n" + build_table(SOUND), [4]),
        (build_table(SOUND, TILT).replace("\n", "\r\n") + "\r\n", [2, 3]),
        (build_table(SOUND, TILT).replace(" | ", "\t|\t"), [2, 3]),
        (build_table(SOUND, TILT).replace(" | ", "|"), [2, 3]),
        (build_table(SOUND + " # not a comment"), [2]),
    ],
)
def test_blanks_comments_and_line_endings_do_not_matter(text: str, lines: list[int]) -> None:
    assert [*parse_identifier_table(text, "my.table")] == lines


@each_row(
    ("text", "line"),
    [
        ("", 1),
        ("\n\n", 1),
        ("# nothing but a comment", 1),
        ("# a comment\n\nid | name | type\n", 3),
        (HEADER.upper(), 1),
        (HEADER + " | more", 1),
        (HEADER.replace("unit | access", "access | unit"), 1),
        ("\ufeff" + HEADER, 1),
        ("\ufeff# a comment\n" + HEADER, 1),
    ],
)
@pytest.mark.rule("value-45")
def test_a_table_without_its_header_is_refused(text: str, line: int) -> None:
    assert find_mistakes(text)[0] == (line, f"the first line is not the header: {HEADER}")


@each_row(
    ("cells", "reason"),
    [
        ({"id": ""}, "id: '' is not 2, 4, 6 or 8 lowercase hex digits"),
        ({"id": "990"}, "id: '990' is not 2, 4, 6 or 8 lowercase hex digits"),
        ({"id": "9C00"}, "id: '9C00' is not 2, 4, 6 or 8 lowercase hex digits"),
        ({"id": "0x9900"}, "id: '0x9900' is not 2, 4, 6 or 8 lowercase hex digits"),
        ({"id": "8080808001"}, "id: '8080808001' is not 2, 4, 6 or 8 lowercase hex digits"),
        ({"name": ""}, "name: '' is not the name of an identifier"),
        ({"name": "sound/level"}, "name: 'sound/level' is not the name of an identifier"),
        ({"name": "sound+"}, "name: 'sound+' is not the name of an identifier"),
        ({"name": "sound\tlevel"}, r"name: 'sound\tlevel' is not the name of an identifier"),
        ({"name": "x" * 129}, f"name: '{'x' * 59}… is not the name of an identifier"),
        ({"name": "8800"}, "name: 8800 has the form of an id"),
        ({"name": "05"}, "name: 05 has the form of an id"),
        ({"dictionary": ""}, "dictionary: '' is neither a number nor -"),
        ({"dictionary": "v4"}, "dictionary: 'v4' is neither a number nor -"),
        ({"dictionary": "-1"}, "dictionary: '-1' is neither a number nor -"),
        ({"dictionary": "9" * 5000}, f"dictionary: '{'9' * 59}… is neither a number nor -"),
        ({"kind": ""}, "kind: is missing"),
        (
            {"kind": "property sensor"},
            "kind: 'sensor' is not one of property, measurement, event, command, internal",
        ),
        ({"access": ""}, "access: '' is not one of r, w, rw, -"),
        ({"access": "wr"}, "access: 'wr' is not one of r, w, rw, -"),
        ({"type": ""}, "type: the end is not a type"),
        ({"type": "u9"}, "type: 'u9' is not a type"),
        ({"type": "Raw"}, "type: 'Raw' is not a type"),
        ({"ext": "{a: u9}"}, "ext: 'u9' is not a type"),
        ({"ext": "u8"}, "ext: an extension must be a record of fixed-size fields"),
        ({"ext": "raw"}, "ext: 'raw' is not a type"),
        ({"note": "a | b"}, "11 columns; 10 are required"),
        (
            {"homeassistant": "light"},
            "homeassistant: 'light' is not one of sensor, binary_sensor, event, number, button",
        ),
        ({"homeassistant": "sensor Dust"}, "homeassistant: 'Dust' is not the name of a device class"),
        ({"homeassistant": "sensor off off"}, "homeassistant: 'off': only one such word is possible"),
        (
            {"homeassistant": "sensor size=1"},
            "homeassistant: 'size' is not one of precision, unknown, step, write, options",
        ),
        ({"homeassistant": "sensor step=0"}, "homeassistant: step: '0' is not a suitable number"),
        ({"homeassistant": "sensor write=it"}, "homeassistant: write: 'it' is not one of clear, switch"),
        (
            {"homeassistant": "sensor options=a"},
            "homeassistant: options must be words with numbers, such as power-on:0,pin:1",
        ),
        ({"homeassistant": "binary_sensor write=clear"}, "homeassistant: only the type bool can have write"),
        ({"homeassistant": "button"}, "homeassistant: the type of a button must be void"),
        ({"homeassistant": "number", "type": "bool"}, "homeassistant: the type of a number must be a number"),
        ({"homeassistant": "sensor enum"}, "homeassistant: an enum needs options, or a type with keywords"),
    ],
)
@pytest.mark.rule("value-45")
def test_a_mistake_names_the_line_the_column_and_the_reason(cells: dict[str, str], reason: str) -> None:
    assert find_mistakes(build_table(TILT, "# a comment", build_row(**cells))) == [(4, reason)]


def test_an_extension_has_no_field_with_the_name_of_the_remainder() -> None:
    assert [line for line, _ in find_mistakes(build_table(build_row(ext="{rest: u8}")))] == [2]


@each_row("line", ["9900", "9900 | sound-level | - | property | u8 | dB | r |"])
@pytest.mark.rule("value-45")
def test_a_row_with_too_few_columns_is_refused(line: str) -> None:
    assert find_mistakes(build_table(line)) == [(2, f"{line.count('|') + 1} columns; 10 are required")]


@pytest.mark.rule("value-45", "id-10")
def test_an_id_or_name_occurs_only_once_whatever_its_kind() -> None:
    rows = [
        SOUND,
        build_row(kind="event"),
        build_row(id="9902", kind="property"),
        build_row(name="noise", type="text"),
    ]
    assert find_mistakes(build_table(*rows)) == [
        (3, "9900 is already in line 2"),
        (3, "sound-level is already in line 2"),
        (4, "sound-level is already in line 2"),
        (5, "9900 is already in line 2"),
    ]


@pytest.mark.rule("value-45")
def test_mistakes_of_all_rows_are_reported_at_once() -> None:
    text = build_table(
        build_row(id="x"),
        SOUND,
        "",
        build_row(type="u9"),
        "# fine",
        SOUND,
        build_row(access="x"),
        header="id | name",
    )
    assert [line for line, _ in find_mistakes(text)] == [1, 2, 5, 7, 7, 8]


@pytest.mark.rule("value-45")
def test_mistakes_of_all_cells_are_reported_at_once() -> None:
    faults = find_mistakes(
        build_table(build_row(id="x", dictionary="?", kind="?", access="?", type="u9", ext="u8"))
    )
    assert {line for line, _ in faults} == {2}
    assert {reason.split(":")[0] for _, reason in faults} == {
        "id",
        "dictionary",
        "kind",
        "access",
        "type",
        "ext",
    }


@pytest.mark.rule("value-45")
def test_mistakes_are_printed_one_per_line_with_the_file_name() -> None:
    refused = MalformedCatalogue("my.table", [LineFault(2, "id: is bad"), LineFault(7, "kind: is missing")])
    assert str(refused) == "my.table:2: id: is bad\nmy.table:7: kind: is missing"


@pytest.mark.rule("value-45")
def test_a_user_table_adds_identifiers() -> None:
    catalogue = BUILTIN_CATALOGUE.extended(build_table(SOUND, TILT), "my.table")
    assert len(catalogue) == len(BUILTIN_CATALOGUE) + 2
    assert catalogue.decode("sound-level", b"\x41") == catalogue.decode("9900", b"\x41") == DecodedValue(65)
    assert catalogue["temperature"] is BUILTIN_CATALOGUE["temperature"]
    assert BUILTIN_CATALOGUE.find("sound-level") is None


@pytest.mark.rule("value-45")
def test_a_user_table_replaces_a_known_identifier() -> None:
    catalogue = BUILTIN_CATALOGUE.extended(
        build_table(build_row(id="8800", name="heat", type="u16")), "my.table"
    )
    assert len(catalogue) == len(BUILTIN_CATALOGUE)
    assert catalogue.encode("heat", 0x1234) == catalogue.encode("8800", 0x1234) == b"\x12\x34"
    assert catalogue.find("temperature") is None
    assert BUILTIN_CATALOGUE.decode("8800", b"\x12\x34") == DecodedValue(46.6)


@pytest.mark.rule("value-45")
def test_a_user_table_adds_a_layout_to_a_raw_identifier() -> None:
    catalogue = BUILTIN_CATALOGUE.extended(
        build_table(build_row(id="8204", name="still-after", type="u16", unit="s")), "my.table"
    )
    assert catalogue.decode("8204", b"\x00\x3c") == DecodedValue(60)


def test_two_identifiers_may_swap_their_names() -> None:
    rows = [build_row(id="8800", name="humidity"), build_row(id="8802", name="temperature")]
    catalogue = BUILTIN_CATALOGUE.extended(build_table(*rows), "my.table")
    assert (catalogue["humidity"].id, catalogue["temperature"].id) == ("8800", "8802")


def test_a_user_table_may_be_extended_again() -> None:
    catalogue = BUILTIN_CATALOGUE.extended(build_table(SOUND), "my.table").extended(
        build_table(TILT), "other.table"
    )
    assert {"sound-level", "tilt", "temperature"} <= catalogue.names


@pytest.mark.rule("value-45", "id-10")
def test_a_name_of_another_identifier_is_a_mistake() -> None:
    text = build_table(SOUND, build_row(id="9901", name="temperature"))
    assert find_mistakes(text, BUILTIN_CATALOGUE) == [(3, "name: temperature is already the name of 8800")]


@pytest.mark.rule("value-45")
def test_a_name_conflict_is_reported_with_the_other_mistakes() -> None:
    text = build_table(build_row(name="temperature"), build_row(id="9901", name="noise", type="u9"))
    assert [line for line, _ in find_mistakes(text, BUILTIN_CATALOGUE)] == [2, 3]


def test_an_extension_in_a_user_table_accepts_the_layouts_of_values() -> None:
    text = build_table(build_row(ext="{level: s16/100, mac: mac}"))
    raw = IdentifierCatalogue.parse(text, "my.table").encode(
        "9900", 1, {"level": 46.604, "mac": "C8B1A2030405"}
    )
    assert raw.hex() == "011234c8b1a2030405"


CELLS = [
    *("", " ", "#", "9900", "05", "8800", "FF", "tilt", "a/b", "-", "12", "property", "event x", "r", "rw"),
    *("u8", "raw", "{a: u8}", "{a: ", "[u8 mac]", "dictionary(0 a: u8)", "\r", "\t", "\ufeff", "°"),
]
rows = st.lists(st.sampled_from(CELLS), max_size=10).map("|".join)


@given(st.text() | st.lists(st.sampled_from([HEADER, SOUND, TILT]) | rows, max_size=5).map("\n".join))
@example(HEADER + "\n" + "|" * 100_000)
@example(HEADER + "\n" + build_row(type="[" * 5000))
@example(HEADER + "\n" + build_row(name="\ud800"))
def test_any_text_is_a_table_or_a_list_of_mistakes(text: str) -> None:
    try:
        entries = parse_identifier_table(text, "my.table")
    except MalformedCatalogue as refused:
        lines = [mistake.line for mistake in refused.faults]
    else:
        lines = [*entries, 1]
    assert lines
    assert all(1 <= line <= text.count("\n") + 1 for line in lines)
