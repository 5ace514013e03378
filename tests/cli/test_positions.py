"""`meshfleet where`, `meshfleet survey` and `meshfleet sites positions`, with a running service."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from meshfleet.cli.commands.watch import LiveReportFilter, print_report
from meshfleet.cli.commands.where import describe_position
from meshfleet.cli.survey_files import read_survey_file
from meshfleet.client import LivePosition, LiveZoneChange, Position, SitePosition
from meshfleet.errors.protocol import LineFault
from meshfleet.protocol.ids import to_device_id
from meshfleet.rest.position_csv import encode_site_rows

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.testing import RunningFleet
    from tests.cli.shell import Shell

SITE, ZONE, DEVICE = f"site-{'0' * 16}", f"zone-{'0' * 16}", "bmac-c0ffee0000a1"
AT = "2026-11-15T10:07:20.000Z"
POINT = {"device": DEVICE, "floor": 0, "x": 1, "y": 2.5, "from": AT, "to": AT}


@pytest.mark.rule("rest-265")
def test_positions_and_surveys_are_printed(admin: Shell, service: RunningFleet, tmp_path: Path) -> None:
    device = to_device_id(min(service.gateways[0].devices))
    site = admin.json("sites", "create", "Hall", "--floor", "0", "0", "0", "20", "14")["id"]
    answer = admin.json("where", device)
    assert answer["position"] is None
    sentence = admin.text("where", device, "--at", "15m", "--window", "120").rstrip()
    assert sentence.endswith(answer["reason"].replace(" 60 s", " 120 s"))
    assert admin.text("sites", "positions", site, "--csv").rstrip() == "device,name,time,floor,x,y,radius"
    history = ("devices", "positions", device, "--from", "2h")
    assert admin.text(*history, "--csv").rstrip() == "time,site,floor,x,y,radius"
    assert admin.text(*history).split()[:3] == ["time", "site", "floor"]
    admin.expect_failure(*history, "--csv", "--limit", "5", code=2)
    reason = "The site has fewer than 3 devices with a place."
    assert admin.text("sites", "coverage", site, "0", "--min-rssi", "-85").rstrip() == reason
    assert admin.json("sites", "coverage", site, "0") == {"coverage": None, "reason": reason}
    assert admin.json("sites", "positions", site) == {"items": [], "suspiciousAnchors": []}
    file = tmp_path / "survey.jsonl"
    lines = [
        json.dumps({"device": device, "floor": 0, "x": 1, "y": 2.5}),
        '{"url": "mqtt://127.0.0.1"}',
        "",
        "no JSON",
    ]
    file.write_text("\n".join(lines))
    refused = admin("survey", "import", site, str(file))
    assert refused.exit_code == 1
    assert f"{file}:4: " in refused.stderr
    file.write_text(lines[0])
    refused = admin("survey", "import", site, str(file))
    assert f"{file}:1: device: was not received" in refused.stderr
    assert admin.text("survey", "list", site).split()[0] == "id"
    admin.text("sites", "remove", site, "--yes")


@pytest.mark.rule("rest-265", "rest-267", "rest-268")
def test_a_survey_is_exported_and_imported(admin: Shell, service: RunningFleet, tmp_path: Path) -> None:
    anchor = min(service.gateways[0].devices)
    site = admin.json("sites", "create", "Hall", "--floor", "0", "0", "0", "20", "14")["id"]
    admin.json("place", anchor, site, "0", "1", "1")
    readings = [{"anchor": anchor, "rssi": -61.25, "count": 12}]
    times = {"from": "2026-01-01T10:00:00.000Z", "to": "2026-01-01T10:01:00.000Z"}
    points = [POINT | times | {"x": x, "readings": readings} for x in (1, 2.5)]
    file = tmp_path / "survey"
    file.write_text("\n".join(map(json.dumps, points)))
    done = admin.text("survey", "import", site, str(file))
    assert done == "2 survey points are added, 0 were there already.\n"
    exported = admin.text("survey", "export", site)
    found = sorted((json.loads(line) for line in exported.splitlines()), key=lambda each: each["x"])
    assert [{name: each[name] for name in points[0]} for each in found] == points
    as_csv = admin.text("survey", "export", site, "--format", "csv")
    for text in (exported, as_csv):
        file.write_text(text)
        assert admin.json("survey", "import", site, str(file)) == {"added": 0, "unchanged": 2}
    file.write_text(json.dumps({"points": found}))
    assert admin.json("survey", "import", site, str(file)) == {"added": 0, "unchanged": 2}
    file.write_text(json.dumps({"points": [points[0], points[1] | {"floor": 7}]}))
    assert (
        f"{file}:1: points[1].floor: the site has no floor 7"
        in admin("survey", "import", site, str(file)).stderr
    )
    for each in found:
        admin.text("survey", "remove", site, each["id"])
    rows = [line.split(",") for line in as_csv.splitlines()]
    for row in rows:  # as Excel saves it in many countries
        row[3:5] = [each.replace(".", ",") for each in row[3:5]]
    file.write_text("\r\n".join(map(";".join, rows)))
    assert admin.json("survey", "import", site, str(file)) == {"added": 2, "unchanged": 0}
    rows[1][3], rows[2][2] = "1,75", "7"
    file.write_text("\n".join(map(";".join, rows)))
    refused = admin("survey", "import", site, str(file))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"{file}:3: floor: the site has no floor 7" in refused.stderr
    assert len(refused.stderr.splitlines()) == 2
    assert len(admin.json_lines("survey", "list", site)) == 2
    name = as_csv.partition("\n")[0]
    file.write_text(f"{name}\n,lamp,x,,1,noon,,,{anchor}:-60\n")
    faults = admin("survey", "import", site, str(file)).stderr.splitlines()[1:]
    assert [each.split()[1] for each in faults] == ["device:", "floor:", "from:", "readings:", "x:"]
    admin.text("sites", "remove", site, "--yes")


def test_wrong_survey_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "survey.jsonl"
    wrong = [POINT | {"x": None}, POINT | {"device": "lamp"}, POINT | {"to": "noon"}, {"floor": 1}]
    file.write_text("\n".join([json.dumps(POINT), *map(json.dumps, wrong), "[1]", '{"floor": NaN}']))
    faults: list[LineFault] = []
    assert [each.line for each in read_survey_file(file, faults)] == [1]
    assert [each.line for each in faults] == [2, 3, 4, 5, 6, 7]
    faults.clear()
    file.write_text("\n")
    assert read_survey_file(file, faults) == []
    assert len(faults) == 1


@pytest.mark.rule("rest-265")
def test_the_points_of_an_export_over_rest_are_read(tmp_path: Path) -> None:
    file, faults = tmp_path / "survey.json", list[LineFault]()
    export = {"points": [POINT, POINT | {"device": "lamp"}, POINT, POINT | {"x": None}]}
    for indent, lines, wrong in ((None, [1, 1], [1, 1]), (1, [3, 19], [11, 27])):
        faults.clear()
        file.write_text(json.dumps(export, indent=indent))
        assert [each.line for each in read_survey_file(file, faults)] == lines
        assert [each.line for each in faults] == wrong
        assert [each.reason.partition(":")[0] for each in faults] == ["points[1].device", "points[3].x"]


def test_a_reading_in_csv_that_is_no_number_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "survey.csv"
    for rssi in ("nan", "inf", "-1e999"):
        faults: list[LineFault] = []
        file.write_text(f"device,floor,x,y,readings\n{DEVICE},0,1,2,c0ffee0000a2:{rssi}:5\n")
        read_survey_file(file, faults)
        assert [each.reason.partition(":")[0] for each in faults] == ["readings"], rssi


def test_a_position_is_a_sentence() -> None:
    position = Position(
        site=SITE,
        floor=0,
        x=3.14,
        y=2.22,
        radius=3.5,
        confidence=0.9,
        level=1,
        time=AT,
        floors=[],
        readings=[],
    )
    now = datetime(2026, 11, 15, 10, 7, 24, tzinfo=UTC)
    expected = "Cold room 3 is on floor 0 of Hall at x 3.1, y 2.2 (within 3.5 m, level 1, 4 s ago)"
    assert describe_position("Cold room 3", "Hall", position, now) == expected
    assert describe_position("A", "Hall", position, now.replace(hour=11)).endswith("60 min ago)")
    assert describe_position("A", "Hall", position, None).endswith(f"at {AT})")


def test_positions_are_formatted_as_csv_without_formulas() -> None:
    item = SitePosition(device=DEVICE, name="=1+1", time=AT, floor=0, x=1.5, y=2.0, radius=3.0)
    assert encode_site_rows([item]).decode() == f"{DEVICE},'=1+1,{AT},0,1.5,2.0,3.0\r\n"


def test_positions_and_zone_changes_are_printed_if_their_kind_is_selected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    position = LivePosition(device=DEVICE, site=SITE, floor=0, x=1.5, y=2.0, radius=3.0, time=AT)
    left = LiveZoneChange(zone=ZONE, device=DEVICE, change="left", time=AT, dwell_seconds=61.0)
    for event in (position, left):
        print_report(event, as_json=False)
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        [AT, DEVICE, "position", f"floor 0 of {SITE} at x 1.5, y 2.0 (within 3.0 m)"],
        [AT, DEVICE, "zone", f"left {ZONE} after 61 s"],
    ]
    empty = frozenset[str]()
    selected = LiveReportFilter(devices=empty, gateways=empty, kinds=frozenset({"zone"}), names=empty)
    assert [selected.matches(each) for each in (position, left)] == [False, True]
