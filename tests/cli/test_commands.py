"""`meshfleet explain` and `meshfleet identifiers`."""

from __future__ import annotations

from pathlib import Path

import msgspec
from click.testing import CliRunner, Result

from meshfleet.cli import main
from tests.row_tables import each_row

MESSAGES = Path(__file__).parent.parent.parent / "examples" / "messages.txt"
HEADER = "id | name | dictionary | kind | type | unit | access | ext | note\n"


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


def test_explain_decodes_the_examples_and_says_why_two_are_rejected() -> None:
    lines = run("explain", str(MESSAGES)).output.splitlines()
    assert len(lines) == len(MESSAGES.read_text().splitlines())
    assert "temperature = 46.6 °C (raw 1234)" in lines[2]
    assert "status 9 (timeout)" in lines[14]
    assert [line.split()[0] for line in lines[-3:]] == ["request", "rejected", "rejected"]
    assert "seq: must be at most 255" in lines[-2]


def test_explain_prints_one_json_object_for_each_message() -> None:
    found = [
        msgspec.json.decode(line) for line in run("explain", "--json", str(MESSAGES)).output.splitlines()
    ]
    assert found[5]["decoded"] == 32
    assert found[5]["ext"] == {"transitionCounter": 21, "isTransition": True}
    assert found[-1]["error"]["code"] == "malformed-time"


def test_explain_reads_standard_input_and_removes_the_prefix() -> None:
    topic = b"site/7/mt/gateway/d0cf5e000001/device/d0cf5e0000a1/event/8113"
    line = topic + b' {"time":"2026-11-15T10:07:20Z","seq":1}\r\n'
    assert "watchdog-reset-event" in run("explain", "--topic-prefix", "site/7", stdin=line).output


def test_explain_shows_no_key() -> None:
    line = b'mt/gateway/d0cf5e000001/request/d0cf5e0000a1/read/8100 {"key":"00c0ffee","publicKey":"04beef"}\n'
    for flags in ([], ["--json"]):
        output = run("explain", *flags, stdin=line).output
        assert "battery-level" in output
        assert "c0ffee" not in output
        assert "beef" not in output


def test_explain_prints_no_control_characters_of_messages() -> None:
    topic = b"mt/gateway/d0cf5e000001/request/d0cf5e0000a1/read/8100"
    lines = topic + b' {"id":"\\u001b[2J\\u009b"}\n' + b"\x1b[2J\xff {}\n"
    output = run("explain", stdin=lines).output
    assert "\x1b" not in output
    assert "\x9b" not in output


@each_row("line", [b"\n", b" \n", b"mt\n", b"\xff\xfe \xff\n", b"mt/gateway/" + b"x" * 70000])
def test_explain_survives_any_line(line: bytes) -> None:
    assert run("explain", stdin=line).exit_code == 0


def test_identifiers_lists_all_and_shows_one_in_detail() -> None:
    assert "legacy-device-mode-switch" in run("identifiers").output
    assert "transitionCounter" in run("identifiers", "8810").output
    (line,) = run("identifiers", "--json", "temperature").output.splitlines()
    assert msgspec.json.decode(line)["unit"] == "°C"


def test_an_unknown_identifier_is_an_error_with_exit_code_1() -> None:
    result = run("identifiers", "no-such-thing")
    assert (result.exit_code, "not in the catalogue" in result.output) == (1, True)


def test_wrong_usage_is_exit_code_2() -> None:
    assert run("explain", "--no-such-flag").exit_code == 2


def test_a_user_defined_table_is_used(tmp_path: Path) -> None:
    table = tmp_path / "mine.table"
    table.write_text(HEADER + "b001 | soil-moisture | - | measurement | u16/10 | % | r | | ours\n")
    topic = b"mt/gateway/d0cf5e000001/device/d0cf5e0000a1/measurement/b001"
    line = topic + b' {"time":"2026-11-15T10:07:20Z","seq":1,"value":"00c8"}'
    assert "soil-moisture = 20.0 %" in run("explain", "--table", str(table), stdin=line).output


def test_a_mistake_in_a_table_is_reported_with_line_and_reason(tmp_path: Path) -> None:
    table = tmp_path / "mine.table"
    table.write_text(HEADER + "\n" + "b001 | soil-moisture | - | measurement | u17 | % | r | |\n")
    result = run("identifiers", "--table", str(table))
    assert result.exit_code == 1
    assert "mine.table:3: type: 'u17' is not a type" in result.output


def test_a_table_that_is_not_text_is_reported_with_its_line(tmp_path: Path) -> None:
    table = tmp_path / "mine.table"
    table.write_bytes(HEADER.encode() + b"\n\xff\n")
    assert "mine.table:3: is not UTF-8" in run("identifiers", "--table", str(table)).output


def test_a_table_may_begin_with_a_byte_order_mark_and_contain_markup(tmp_path: Path) -> None:
    table = tmp_path / "mine.table"
    row = "b001 | [red]name | - | measurement | u8 | [/x] | r | | \x1b]0;title\x07\n"
    table.write_text("\ufeff" + HEADER + row, "utf-8")
    listed = run("identifiers", "--table", str(table))
    assert listed.exit_code == 0
    assert "[red]name" in listed.output
    assert "[/x]" in listed.output
    assert "\x1b" not in run("identifiers", "--table", str(table), "b001").output


def test_a_list_in_a_pipe_is_not_cut() -> None:
    assert "priority-mode-advertisement-interval  property" in run("identifiers").output


def test_explain_says_why_a_raw_value_is_not_decoded() -> None:
    topic = b"mt/gateway/d0cf5e000001/device/d0cf5e0000a1/property/8110"
    line = topic + b' {"time":"2026-11-15T10:07:20Z","value":"09"}\n'
    output = run("explain", stdin=line).output
    assert 'device-mode = "09" (not decoded: 09 is not a value of this enumeration)' in output
    (found,) = run("explain", "--json", stdin=line).output.splitlines()
    assert msgspec.json.decode(found)["undecodable"] == "09 is not a value of this enumeration"
