"""`meshfleet install systemd`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from meshfleet.cli.commands.install import HIDDEN_FOLDERS, find_hidden_folder
from meshfleet.settings import load_settings
from tests.cli.programs import MESHFLEET, run_command
from tests.external_tools import SYSTEMD_ANALYZE, require
from tests.row_tables import each_row

UNITS = Path("etc/systemd/system")
SETTINGS = Path("etc/meshfleet/meshfleet.toml")
FILES = {
    *(UNITS / name for name in ("meshfleet.service", "meshfleet-backup.service", "meshfleet-backup.timer")),
    SETTINGS,
}


def install(root: Path) -> str:
    result = run_command("install", "systemd", "--root", str(root))
    assert result.exit_code == 0, result.output
    return result.stdout


def list_files(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file()}


def test_all_files_are_written_and_run_this_program(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        output = install(tmp_path)
    finally:
        os.umask(umask)
    assert list_files(tmp_path) == FILES
    assert {(tmp_path / path).stat().st_mode & 0o777 for path in FILES} == {0o644}
    folders = {(tmp_path / path).parent for path in FILES}
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o755}
    commands = {
        path.name: re.findall(r"^ExecStart=(.*)$", (tmp_path / path).read_text(), re.MULTILINE)
        for path in FILES
    }
    settings = "--config /etc/meshfleet/meshfleet.toml"
    assert commands == {
        "meshfleet.service": [f"{MESHFLEET} serve {settings}"],
        "meshfleet-backup.service": [f"{MESHFLEET} backup /var/lib/meshfleet-backup --keep 7 {settings}"],
        "meshfleet-backup.timer": [],
        "meshfleet.toml": [],
    }
    assert output.count("Written: ") == len(FILES)
    next_commands = output.partition("Next:\n")[2].splitlines()
    assert [line.split()[0] for line in next_commands] == ["systemctl", str(MESHFLEET), "systemctl"]


def test_a_program_that_the_unit_hides_from_the_service_is_reported(tmp_path: Path) -> None:
    result = run_command("install", "systemd", "--root", str(tmp_path))
    needed = (str(MESHFLEET), os.path.realpath(sys.executable))
    assert ("the service cannot run" in result.stderr) == any(map(find_hidden_folder, needed))
    hidden = [find_hidden_folder(f"{folder}/venv/bin/meshfleet") for folder in HIDDEN_FOLDERS]
    assert hidden == [*HIDDEN_FOLDERS]
    assert find_hidden_folder("/opt/meshfleet/bin/meshfleet") is None


def test_the_options_of_the_units_exist(tmp_path: Path) -> None:
    install(tmp_path)
    for unit in ("meshfleet.service", "meshfleet-backup.service"):
        (start,) = re.findall(r"^ExecStart=(.*)$", (tmp_path / UNITS / unit).read_text(), re.MULTILINE)
        options = re.findall(r" (--[a-z-]+)", start)
        help_text = run_command(start.split()[1], "--help").output
        assert [option for option in options if option not in help_text] == []


def test_the_service_may_read_what_the_metrics_of_its_process_need(tmp_path: Path) -> None:
    install(tmp_path)
    # With ProcSubset=pid there is no /proc/stat, and prometheus_client returns no metrics of the process.
    assert "\nProcSubset=" not in (tmp_path / UNITS / "meshfleet.service").read_text()


def test_the_log_goes_to_the_journal_but_the_first_password_does_not(tmp_path: Path) -> None:
    install(tmp_path)
    unit = (tmp_path / UNITS / "meshfleet.service").read_text()
    # Without StandardError=, systemd sends standard error where standard output goes: to /dev/null.
    assert re.findall(r"^Standard.*$", unit, re.MULTILINE) == ["StandardOutput=null", "StandardError=journal"]


def test_a_second_run_replaces_units_and_leaves_the_settings(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / UNITS / "meshfleet.service").write_text("[Unit]\n")
    (tmp_path / SETTINGS).write_text('http = "127.0.0.1:9090"\n')
    output = install(tmp_path)
    assert f"Replaced: {tmp_path / UNITS / 'meshfleet.service'}\n" in output
    assert f"Unchanged: {tmp_path / UNITS / 'meshfleet-backup.timer'}\n" in output
    assert f"Left as it is: {tmp_path / SETTINGS} " in output
    assert "DynamicUser=yes" in (tmp_path / UNITS / "meshfleet.service").read_text()
    assert (tmp_path / SETTINGS).read_text() == 'http = "127.0.0.1:9090"\n'
    assert list_files(tmp_path) == FILES


def test_print_writes_nothing(tmp_path: Path) -> None:
    result = run_command("install", "systemd", "--print", "--root", str(tmp_path))
    assert result.exit_code == 0
    assert list_files(tmp_path) == set()
    printed = re.findall(r"^# /(etc/.*)$", result.stdout, re.MULTILINE)
    assert set(map(Path, printed)) == FILES
    install(tmp_path)
    assert all((tmp_path / path).read_text() in result.stdout for path in FILES)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("")
    result = run_command("install", "systemd", "--root", str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{tmp_path / UNITS / 'meshfleet.service'} cannot be written: Not a directory" in result.stderr


def test_other_users_than_root_are_told_what_to_do() -> None:
    command = [str(MESHFLEET), "install", "systemd"]
    if os.geteuid() == 0:
        command = ["setpriv", "--reuid=65534", "--clear-groups", *command]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert (result.returncode, result.stdout) == (1, "")
    assert "needs root: run this command with sudo, or use --print or --root DIR" in result.stderr


def test_the_example_settings_are_valid_with_every_comment_removed(tmp_path: Path) -> None:
    install(tmp_path)
    text = (tmp_path / SETTINGS).read_text()
    assert tomllib.loads(text) == {"data": "/var/lib/meshfleet", "http": "127.0.0.1:8080"}
    complete = tmp_path / "complete.toml"
    complete.write_text(re.sub(r"^# (?=[a-z-]+ = |\[)", "", text, flags=re.MULTILINE))
    settings = load_settings({}, {}, file=complete)
    assert settings.retention.measurement is not None
    assert len(tomllib.loads(complete.read_text())) > 6


@pytest.mark.part("deployment")
@each_row("unit", ["meshfleet.service", "meshfleet-backup.service"])
def test_systemd_accepts_the_units_and_finds_them_hardened(unit: str, tmp_path: Path) -> None:
    analyze = str(require(SYSTEMD_ANALYZE))
    install(tmp_path)
    paths = [str(tmp_path / UNITS / name) for name in (unit, "meshfleet-backup.timer")]
    verify = [analyze, "verify", *paths]
    result = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    # A threshold of 15 is an exposure of 1.5, of at most 10.
    security = [analyze, "security", "--offline=true", "--threshold=15", paths[0]]
    assert subprocess.run(security, capture_output=True, check=False).returncode == 0
