"""`meshfleet firmware` and `meshfleet jobs` with an emulated fleet that is really updated."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.cli.job_output import format_more_failed
from meshfleet.client import Job
from meshfleet.client.rest.jobs import build_new_job
from meshfleet.protocol.firmware_image import build_package
from meshfleet.protocol.ids import ModelNumber, Version
from meshfleet.service.api import load_openapi_document
from tests.cli.shell import Shell, run_at_terminal
from tests.firmware_images import bare_image
from tests.row_tables import each_row

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "0018"
FAST = ("--heartbeats", "0", "--per-gateway", "none")
"""Options that make a job end soon."""

BY_USER = "requested by a user (USER)"

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

_versions = count(1)


class FirmwareFile:
    """File with a new firmware version."""

    def __init__(self, folder: Path) -> None:
        self.version = f"9.1.{next(_versions)}"
        self.file = folder / f"image-{self.version}.zip"
        self.content = build_package(
            bytes(20_000), model_number=ModelNumber(MODEL), version=Version.parse(self.version)
        )
        self.file.write_bytes(self.content)

    def upload(self, shell: Shell, *more: str) -> Any:
        command = ["firmware", "upload", str(self.file), "--model", MODEL, "--version", self.version]
        return shell.json(*command, *more)


@pytest.fixture
def image(tmp_path: Path) -> FirmwareFile:
    return FirmwareFile(tmp_path)


@pytest.fixture
def released(admin: Shell, image: FirmwareFile) -> str:
    record = image.upload(admin)
    admin.text("firmware", "release", record["id"])
    return str(record["id"])


# --- Firmware ---


def test_firmware_is_uploaded_released_shown_and_listed(admin: Shell, image: FirmwareFile) -> None:
    record = image.upload(admin, "--notes", "for tests", "--hardware", "1.0.0", "--hardware", "1.2.0")
    assert (record["state"], record["notes"], record["fileName"]) == ("draft", "for tests", image.file.name)
    assert record["hardwareVersions"] == ["1.0.0", "1.2.0"]
    summary = f"{record['id']}, version {image.version} for {MODEL}, is released.\n"
    assert admin.text("firmware", "release", record["id"]) == summary
    shown = admin.text("firmware", "show", record["id"])
    assert shown.startswith(summary)
    assert re.search(r"^hardware +1\.0\.0, 1\.2\.0\nminimum version +any\n", shown, re.MULTILINE)
    assert re.search(r"^type +Nordic package$", shown, re.MULTILINE)
    assert admin.json("firmware", "list", "--version", image.version, "--state", "released") == admin.json(
        "firmware", "show", record["id"]
    )
    assert record["id"] in admin.text("firmware", "list", "--model", MODEL)
    assert admin.json_lines("firmware", "list", "--version", image.version, "--state", "draft") == []


def test_an_image_is_downloaded_under_its_name_or_another(
    admin: Shell, image: FirmwareFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = image.upload(admin)
    copy = tmp_path / "copy.zip"
    assert admin.json("firmware", "download", record["id"], str(copy))["size"] == len(image.content)
    assert copy.read_bytes() == image.content
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    admin.text("firmware", "download", record["id"])
    assert (folder / image.file.name).read_bytes() == image.content
    assert "already exists" in admin.expect_failure("firmware", "download", record["id"])
    assert "cannot be written" in admin.expect_failure("firmware", "download", record["id"], "nowhere/image")


def test_firmware_is_withdrawn_and_deleted(admin: Shell, image: FirmwareFile) -> None:
    record = image.upload(admin)
    assert admin.json("firmware", "withdraw", record["id"])["state"] == "withdrawn"
    assert admin.text("firmware", "remove", record["id"]) == f"{record['id']} is deleted.\n"
    assert "firmware not found" in admin.expect_failure("firmware", "show", record["id"])


def test_mistakes_of_an_image_are_reported(admin: Shell, image: FirmwareFile, tmp_path: Path) -> None:
    command = ["firmware", "upload", str(image.file), "--version", image.version]
    assert "0043" in admin.expect_failure(*command, "--model", "0043")
    assert "'--sha256'" in admin.expect_failure(*command, "--model", MODEL, "--sha256", "0" * 64, code=2)
    assert "--model" in admin.expect_failure(*command, code=2)
    admin.expect_failure(
        "firmware", "upload", str(tmp_path / "nothing"), "--model", MODEL, "--version", "1", code=2
    )
    other = ["firmware", "upload", str(image.file), "--version", "9.0.0", "--model", MODEL]
    assert f"version {image.version}; the record says 9.0.0" in admin.expect_failure(*other, code=2)


@pytest.mark.rule("rest-213", "rest-221")
def test_a_bare_image_is_accepted_only_with_its_option(
    admin: Shell, image: FirmwareFile, tmp_path: Path
) -> None:
    file = tmp_path / "hostname"
    file.write_text("my-host\n")
    command = ["firmware", "upload", str(file), "--model", MODEL, "--version", image.version]
    assert "is not a Nordic package (a zip file)" in admin.expect_failure(*command, code=2)
    assert "it has 8 bytes" in admin.expect_failure(*command, "--bare", code=2)
    output = admin.text(*command, "--bare", "--override")
    assert output.endswith(f" is version {image.version} for {MODEL}, a bare image.\n")
    firmware = output.split()[0]
    assert re.search(r"^type +bare image$", admin.text("firmware", "show", firmware), re.MULTILINE)
    listed = admin.text("firmware", "list", "--version", image.version)
    assert "bare image" in listed
    admin.text("firmware", "remove", firmware)
    file.write_bytes(bare_image())
    assert admin.json(*command, "--bare")["bare"] is True


def test_an_upload_at_a_terminal_leaves_one_line(admin: Shell, image: FirmwareFile) -> None:
    command = ["firmware", "upload", str(image.file), "--model", MODEL, "--version", image.version]
    shown, code = run_at_terminal(admin, *command)
    assert code == 0
    pattern = rf"fw-[0-9a-f]{{16}} is version {image.version} for {MODEL}, a Nordic package\.\n$"
    assert re.search(pattern, shown)


# --- Jobs ---


def test_a_job_updates_devices_and_is_watched_until_it_ends(
    admin: Shell, image: FirmwareFile, released: str
) -> None:
    job = admin.json("jobs", "create", "Update", "--firmware", released, "--filter", "model=0018", *FAST)
    devices = [each["id"] for each in admin.json_lines("devices", "list", "--model", MODEL)]
    lines = admin.text("jobs", "watch", job["id"]).splitlines()
    assert len(lines) == len(set(lines))
    assert lines[-1] == f"{job['id']}  COMPLETED, SUCCEEDED  100 %  {len(devices)} SUCCEEDED"
    last = admin.json_lines("jobs", "watch", job["id"])[-1]
    assert last == admin.json("jobs", "show", job["id"].removeprefix("job-"))
    found = admin.json_lines("jobs", "executions", job["id"], "--state", "SUCCEEDED")
    assert sorted(each["deviceId"] for each in found) == sorted(devices)
    assert f"the device runs {image.version}" in admin.text("jobs", "show", job["id"], devices[0])
    assert admin.json_lines("jobs", "list", "--firmware", released, "--state", "COMPLETED") == [last]
    assert job["id"] in admin.text("jobs", "list", "--limit", "5")


def test_watching_a_job_that_does_not_succeed_is_exit_code_1(admin: Shell, released: str) -> None:
    options = ("--all", "--no-apply")
    job = admin.json("jobs", "create", "Held", "--firmware", released, *options)
    assert job["state"] == "CREATED"
    assert admin.text("jobs", "cancel", job["id"]) == f"{job['id']} is CANCELING: {BY_USER}.\n"
    result = admin("jobs", "watch", job["id"])
    assert result.exit_code == 1
    assert result.stderr == f"Error: {job['id']} is CANCELED, outcome NONE: {BY_USER}.\n"
    assert "CANCELED, NONE" in result.stdout
    retried = admin.json("jobs", "retry", job["id"])
    assert retried["parentJobId"] == job["id"]
    admin.text("jobs", "cancel", retried["id"])


@pytest.mark.rule("rest-214")
def test_a_job_is_deleted_after_a_confirmation(admin: Shell, released: str) -> None:
    job = admin.json("jobs", "create", "Left over", "--firmware", released, "--all", "--no-apply")
    devices = sum(job["counts"].values())
    refused = admin("jobs", "delete", job["id"], stdin="n\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"Delete {job['id']}, Left over, with its {devices} executions? [y/N]" in refused.stderr
    assert admin.json("jobs", "show", job["id"])["state"] == "CREATED"
    confirmed = admin("jobs", "delete", job["id"], stdin="y\n")
    assert (confirmed.exit_code, confirmed.stdout) == (0, f"{job['id']} is deleted.\n")
    assert "job not found" in admin.expect_failure("jobs", "delete", job["id"], "--yes")
    running = admin.json("jobs", "create", "Runs", "--firmware", released, "--all", "--rate", "1")
    assert "cancel it before" in admin.expect_failure("jobs", "delete", running["id"], "--yes")
    admin.text("jobs", "cancel", running["id"])
    admin("jobs", "watch", running["id"])
    assert admin.json("jobs", "delete", running["id"], "--yes") == {"id": running["id"], "deleted": True}


def test_a_job_is_shown_with_its_state_and_changed_options(admin: Shell, released: str) -> None:
    job = admin.json(
        *("jobs", "create", "Shown", "--firmware", released, "--filter", "model=0018", "--wave", "first=1"),
        *("--abort", "20", "--abort-after", "3", *FAST),
    )
    admin.text("jobs", "watch", job["id"])
    devices, version = sum(job["counts"].values()), re.escape(job["version"])
    assert re.fullmatch(
        rf"""{job["id"]} is COMPLETED, outcome SUCCEEDED\.
{devices} devices, 100 % done: {devices} SUCCEEDED

name +Shown
firmware +{version} for model 0018, {released}
created +{TIME} by admin
started +{TIME}
finished +{TIME}
targets\.filter\.ModelNumber +0018
concurrency\.perGateway +none
health\.heartbeats +0
abort +PAUSE if 20 % fail, of 3 or more that were started

wave +state +devices +succeeded
first +PASSED +1 +1
2 +PASSED +{devices - 1} +{devices - 1}
""",
        admin.text("jobs", "show", job["id"]),
    )


def test_a_job_is_shown_with_its_failed_devices(admin: Shell, released: str) -> None:
    job = admin.json(
        *("jobs", "create", "Hasty", "--firmware", released, "--filter", "model=0018"),
        *("--rate", "1", "--queue-minutes", "0.0001", *FAST),
    )
    assert admin("jobs", "watch", job["id"]).exit_code == 1
    timed_out = admin.json_lines("jobs", "executions", job["id"], "--state", "TIMED_OUT")
    shown = admin.text("jobs", "show", job["id"])
    assert timed_out
    for each in timed_out:
        assert re.search(rf"^{each['deviceId']} +TIMED_OUT .*\(NEVER_BEGUN\)$", shown, re.MULTILINE)
    assert "more" not in shown
    larger = msgspec.convert({**job, "counts": {"FAILED": 7, "TIMED_OUT": 5, "SUCCEEDED": 9}}, Job)
    others = f"meshfleet jobs executions {job['id']} --state FAILED --state TIMED_OUT"
    assert format_more_failed(larger) == f"and 2 more: {others}"


def test_an_execution_is_shown_with_its_timeline(admin: Shell, image: FirmwareFile, released: str) -> None:
    device = admin.json_lines("devices", "list", "--model", MODEL)[0]["id"]
    job = admin.json("jobs", "create", "Story", "--firmware", released, "--device", device, *FAST)
    admin.text("jobs", "watch", job["id"])
    shown = admin.text("jobs", "show", job["id"], device)
    assert shown.startswith(f"{device} is SUCCEEDED in {job['id']}, 100 %.\n\nversion ")
    timeline = shown.partition("\ntime ")[2].splitlines()[1:]
    assert re.fullmatch(rf"{TIME} +-> QUEUED +the job was created", timeline[0])
    assert re.fullmatch(
        rf"{TIME} +QUEUED -> DISPATCHED +dispatched: the start command is about to be sent", timeline[1]
    )
    succeeded = rf"{TIME} +CONFIRMING -> SUCCEEDED +the device runs {re.escape(image.version)}.*"
    assert re.fullmatch(succeeded, timeline[-2])
    version_response = (
        rf" +response to version: [0-9a-f]{{6,8}} \(firmware-version {re.escape(image.version)}\)"
    )
    assert re.fullmatch(version_response, timeline[-1])
    times = re.findall(rf"^{TIME}", "\n".join(timeline), re.MULTILINE)
    assert times == sorted(times)


def test_tables_of_updates_fit_a_terminal_of_100_columns(admin: Shell, released: str) -> None:
    job = admin.json("jobs", "create", "Motion sensors", "--firmware", released, "--all", "--no-apply")
    tables = [("firmware", "list"), ("jobs", "list"), ("jobs", "executions", job["id"])]
    shown = [run_at_terminal(admin, *command, columns=100)[0] for command in tables]
    for table in shown:
        lines = re.sub(r"\x1b\[[0-9;]*m", "", table).splitlines()
        assert max(map(len, lines)) <= 100
    assert re.search(rf"^{job['id']} +Motion sensors .*Z$", shown[1], re.MULTILINE)
    admin.text("jobs", "cancel", job["id"])


def test_a_job_is_applied_paused_and_resumed(admin: Shell, released: str) -> None:
    job = admin.json(
        "jobs", "create", "Steered", "--firmware", released, "--filter", "model=0018", "--no-apply", *FAST
    )
    assert json.loads(admin.text("jobs", "apply", job["id"], "--json"))["state"] == "IN_PROGRESS"
    assert admin.text("jobs", "pause", job["id"]) == f"{job['id']} is PAUSED: {BY_USER}.\n"
    assert admin.text("jobs", "resume", job["id"]) == f"{job['id']} is IN_PROGRESS.\n"
    admin.text("jobs", "watch", job["id"])
    assert "completed" in admin.expect_failure("jobs", "pause", job["id"])


def test_all_options_of_a_job_reach_the_service(admin: Shell, released: str) -> None:
    device = admin.json_lines("devices", "list", "--model", MODEL)[0]["id"]
    admin.text("devices", "label", device, "pilot")
    job = admin.json(
        *("jobs", "create", "All options", "--firmware", released, "--device", device, "--label", "pilot"),
        *("--filter", "connected=yes", "--filter", "label=pilot", "--filter", "label=pilot"),
        *("--wave", "canary=5", "--wave", "10.5%", "--wave", "100%", "--gate", "95", "--soak", "10"),
        *("--gate-pause", "--per-job", "100", "--per-gateway", "none", "--rate", "50"),
        *("--abort", "20", "--abort-after", "10", "--abort-cancel", "--on-newer-job", "reject"),
        *("--method", "download", "--stage", "--allow-downgrade", "--no-apply"),
        *("--start", "2030-01-01T00:00:00Z", "--deadline", "2030-01-02T00:00:00Z"),
        *("--retries", "2", "--backoff", "30", "--queue-minutes", "60", "--step-minutes", "5"),
        *("--total-minutes", "90", "--heartbeats", "1"),
    )
    assert job["targets"] == {
        "deviceIds": [device],
        "labels": ["pilot"],
        "filter": {"Connected": True, "Label": ["pilot", "pilot"]},
        "all": False,
    }
    assert [(each["name"], each["count"], each["percent"]) for each in job["waves"]] == [
        ("canary", 5, None),
        (None, None, 10.5),
        (None, None, 100),
    ]
    assert job["gate"] == {"successPercent": 95, "soakMinutes": 10, "pause": True}
    assert job["concurrency"] == {"perJob": 100, "perGateway": None}
    assert job["rate"] == {"perMinute": 50}
    assert job["abort"] == [{"type": "ALL", "minExecuted": 10, "percent": 20, "action": "CANCEL"}]
    assert job["retry"] == {"max": 2, "backoffSeconds": 30}
    assert job["timeouts"] == {"queueMinutes": 60, "stepMinutes": 5, "totalMinutes": 90}
    assert (job["stage"], job["allowDowngrade"], job["autoApply"]) == (True, True, False)
    assert (job["startAt"], job["deadline"]) == ("2030-01-01T00:00:00.000Z", "2030-01-02T00:00:00.000Z")
    assert (job["method"], job["onNewerJob"], job["health"]) == ("download", "reject", {"heartbeats": 1})
    admin.text("jobs", "cancel", job["id"])


@pytest.mark.rule("rest-128")
def test_the_default_number_of_retries_is_two_on_every_interface(logged_out: Shell) -> None:
    documented = load_openapi_document()["components"]["schemas"]["Retry"]["properties"]["max"]["default"]
    new_job = build_new_job("name", "fw-0123456789abcdef", {"everything": True}, dry_run=False)
    offered = re.search(
        r"Maximum automatic retries per device\.\s+\[default: (\d+)",
        logged_out.text("jobs", "create", "--help"),
    )
    assert offered is not None
    assert (documented, new_job.retry.max, offered[1]) == (2, 2, "2")


def test_a_dry_run_explains_and_creates_nothing(admin: Shell, released: str) -> None:
    command = ["jobs", "create", "Dry", "--firmware", released, "--all", "--dry-run", "--wave", "first=1"]
    plan = admin.json(*command)
    text = admin.text(*command)
    assert text.startswith(f"{plan['eligible']} of {plan['targets']} devices would be updated, ")
    assert re.search(r"^first +1$", text, re.MULTILINE)
    assert re.search(r"^1 +its model is 2011; the firmware is for 0018 +bmac-", text, re.MULTILINE)
    assert admin.json_lines("jobs", "list", "--firmware", released) == []


@pytest.mark.rule("rest-177")
@each_row(
    "wrong",
    [
        ["create", "No devices", "--firmware", "fw-0123456789abcdef"],
        ["create", "No firmware", "--all"],
        ["create", "Wave", "--firmware", "fw-0123456789abcdef", "--all", "--wave", "some"],
        ["create", "Wave", "--firmware", "fw-0123456789abcdef", "--all", "--wave", "1.5"],
        ["create", "Filter", "--firmware", "fw-0123456789abcdef", "--filter", "color=red"],
        ["create", "Filter", "--firmware", "fw-0123456789abcdef", "--filter", "connected=maybe"],
        ["create", "Twice", "--firmware", "fw-0123456789abcdef", "--filter", "name=a", "--filter", "name=b"],
        ["create", "Limit", "--firmware", "fw-0123456789abcdef", "--all", "--per-gateway", "0"],
        ["create", "Abort", "--firmware", "fw-0123456789abcdef", "--all", "--abort-cancel"],
        ["create", "Id", "--firmware", "../users", "--all"],
        ["show", "job-0"],
        ["watch", "../users"],
        ["list", "--state", "SOMEWHERE"],
    ],
)
def test_invalid_options_are_wrong_usage(logged_out: Shell, wrong: list[str]) -> None:
    logged_out.expect_failure("jobs", *wrong, code=2)


def test_errors_of_the_service_are_reported(admin: Shell, image: FirmwareFile) -> None:
    record = image.upload(admin)
    assert "not released" in admin.expect_failure(
        "jobs", "create", "Draft", "--firmware", record["id"], "--all"
    )
    for command in ("show", "watch", "pause", "executions"):
        assert "job not found" in admin.expect_failure("jobs", command, "job-999999")


def test_completion_offers_firmware_and_jobs(admin: Shell, released: str) -> None:
    job = admin.json("jobs", "create", "Offered", "--firmware", released, "--all", "--no-apply")

    def complete(*words: str) -> list[str]:
        variables = {"COMP_WORDS": "\n".join(["meshfleet", *words]), "COMP_CWORD": str(len(words))}
        return admin("", _MESHFLEET_COMPLETE="bash_complete", **variables).stdout.splitlines()

    assert f"plain,{released}" in complete("firmware", "show", "fw-")
    assert f"plain,{released}" in complete("jobs", "create", "--firmware", "")
    assert f"plain,{job['id']}" in complete("jobs", "pause", "job-")
    assert "plain,executions" in complete("jobs", "ex")
    admin.text("jobs", "cancel", job["id"])
