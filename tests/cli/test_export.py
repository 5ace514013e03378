"""`meshfleet export`: samples of all devices in files of three formats."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from meshfleet.cli.sample_files import import_pyarrow
from meshfleet.protocol.times import format_time
from tests.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.shell import Shell

_, parquet = import_pyarrow()


def export(shell: Shell, out: Path, file_format: str, *options: str) -> str:
    return shell.text("export", "--format", file_format, "--out", str(out), *options)


def read_lines(out: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in sorted(out.rglob("*.jsonl")) for line in path.read_text().splitlines()
    ]


def test_all_formats_have_the_same_samples_as_rest(admin: Shell, tmp_path: Path) -> None:
    device = admin.json_lines("devices", "list")[-1]["id"]
    until = format_time(datetime.now(UTC))
    # The simulation goes on: once it has delivered everything before `until`, exports do not change.
    options = ["--from", "20h", "--to", until, "--identifier", "temperature"]

    def export_unchanged() -> Path:
        folder = tmp_path / f"all-{datetime.now(UTC).timestamp()}"
        export(admin, folder / "before", "jsonl", *options)
        for file_format in ("parquet", "csv"):
            export(admin, folder / file_format, file_format, *options)
        export(admin, folder / "lines", "jsonl", *options)
        assert read_lines(folder / "before") == read_lines(folder / "lines") != []
        return folder

    out = eventually(export_unchanged)
    lines = read_lines(out / "lines")
    rows = [
        row
        for path in sorted(out.glob("csv/date=*/part-*.csv"))
        for row in csv.DictReader(io.StringIO(path.read_text(), newline=""))
    ]
    table = [
        row
        for path in sorted(out.glob("parquet/date=*/part-*.parquet"))
        for row in parquet.ParquetFile(path).read().to_pylist()
    ]
    for name in ("device", "name", "gateway", "kind", "identifier"):
        assert [row[name] for row in rows] == [row[name] for row in table] == [line[name] for line in lines]
    # A failed measurement has no value.
    values = [float(row["value_double"]) if row["value_double"] else None for row in rows]
    assert values == [line["value_double"] for line in lines]
    assert [row["value_double"] for row in table] == [line["value_double"] for line in lines]
    assert [format_time(row["time"]) for row in table] == [line["time"] for line in lines]
    listed = admin.json_lines("samples", device, *options, "--limit", "100000")
    of_device = [line for line in lines if line["device"] == device.removeprefix("bmac-")]
    assert [(line["time"], line["value_double"]) for line in of_device] == [
        (sample["time"], sample["value"]) for sample in reversed(listed)
    ]
    assert not list(out.rglob(".*"))


def test_an_export_never_writes_over_another_one(admin: Shell, tmp_path: Path) -> None:
    days = admin.json_lines("export", "--from", "1s", "--format", "csv", "--out", str(tmp_path / "json"))
    assert {*days[-1]} == {"day", "samples"}
    assert "Written 0 samples" in export(admin, tmp_path, "csv", "--from", "20h", "--filter", "name=no such")
    (tmp_path / f"date={datetime.now(UTC):%Y-%m-%d}").mkdir()
    message = admin.expect_failure("export", "--from", "1s", "--format", "csv", "--out", str(tmp_path))
    assert "exists already" in message


def test_a_wrong_time_range_is_wrong_usage(admin: Shell, tmp_path: Path) -> None:
    later = format_time(datetime.now(UTC) + timedelta(hours=1))
    message = admin.expect_failure("export", "--from", later, "--out", str(tmp_path), code=2)
    assert "--from must be before --to" in message
