"""`meshfleet channels`, and silences of alarms."""

from __future__ import annotations

import json
from ipaddress import ip_network
from typing import TYPE_CHECKING

import pytest

from meshfleet.cli.local_time_zone import find_local_time_zone
from meshfleet.rest.accounts import Role
from meshfleet.settings import Settings
from meshfleet.settings.model import WebhookSettings
from tests.cli.shell import Shell
from tests.databases import fresh_database
from tests.service.alarms.alarm_harness import MINUTE
from tests.service.alarms.presence_log import PresenceLog
from tests.service.http.running_service import PASSWORD, RunningService, run_service
from tests.service.notifications.notifier_harness import FAILED, NotifierHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

URL = "https://127.0.0.1/hooks/very-secret-f3a"


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest) -> Iterator[RunningService]:
    settings = Settings(webhooks=WebhookSettings(allow=(ip_network("127.0.0.0/8"),)))
    with run_service(fresh_database(request, "sqlite"), settings) as running:
        yield running


@pytest.fixture
def admin(service: RunningService, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path / "home")
    user = service.new_user(Role.ADMIN)
    shell.text("login", "--url", service.url, "--user", user, MESHFLEET_PASSWORD=PASSWORD)
    return shell


@pytest.mark.rule("rest-276", "rest-278", "rest-279", "rest-280")
def test_channels_are_created_changed_tested_and_deleted(
    service: RunningService, admin: Shell, tmp_path: Path
) -> None:
    added = admin("channels", "add", "Office", "--email", "a@example.org", "--email", "b@example.org")
    assert (added.exit_code, added.stdout, added.stderr) == (0, "", "channel-1 is Office.\n")
    assert admin.json("channels", "show", "1")["recipients"] == ["a@example.org", "b@example.org"]
    changed = admin.json("channels", "change", "1", "--name", "Desk", "--off")
    assert (changed["name"], changed["state"], changed["recipients"][1]) == ("Desk", "off", "b@example.org")
    assert admin.json("channels", "change", "1", "--on", "--email", "c@example.org")["state"] == "ready"
    (line,) = admin.text("channels", "list").splitlines()[1:]
    assert line.split()[:5] == ["channel-1", "Desk", "email", "c@example.org", "ready"]
    wrong = admin.expect_failure("channels", "add", "Both", "--email", "a@b.de", "--watchdog", URL, code=2)
    assert "Give one of --webhook, --email, --watchdog and --mqtt." in wrong
    missing = ("channels", "add", "Duty", "--email", "a@b.de", "--routing-key", "key")
    assert "--routing-key" in admin.expect_failure(*missing, code=2)

    harness = NotifierHarness(service.database, service.clock)
    service.channel_tester.attach(harness.notifier)
    assert admin.text("channels", "test", "channel-1").startswith("Delivered (status 200, ")
    harness.recorder.answer = lambda _name, _message: FAILED
    failed = admin("channels", "test", "channel-1")
    assert (failed.exit_code, "the receiver answers 503" in failed.stdout) == (1, True)
    assert admin.json_lines("channels", "deliveries", "1", "--state", "dead") == []
    assert admin.text("channels", "retry", "1") == "0 messages are tried again.\n"
    assert "has no delivery-7" in admin.expect_failure("channels", "retry", "1", "7")

    routes = admin.json("channels", "routes")
    assert [each["name"] for each in routes["items"]] == ["Critical", "Warnings", "Information"]
    text = admin.text("channels", "routes")
    zone = find_local_time_zone()
    assert f"07:00-20:00 ({zone}), else hold" in text
    assert f"daily at 08:00 ({zone})" in text
    assert "routes lead to this channel" in admin.expect_failure("channels", "delete", "1", "--yes")
    file = tmp_path / "routes.json"
    file.write_text(json.dumps({"items": [{"name": "x", "channels": ["channel-9"]}]}))
    assert "'channel-9' does not exist" in admin.expect_failure("channels", "routes", "--file", str(file))
    file.write_text("[]")
    assert "body" in admin.expect_failure("channels", "routes", "--file", str(file))
    file.write_text(json.dumps({"items": routes["items"][:1]}))
    assert admin.json("channels", "routes", "--file", str(file)) == {"items": routes["items"][:1]}
    file.write_text('{"items": []}')
    admin.text("channels", "routes", "--file", str(file))
    assert admin.text("channels", "delete", "channel-1", "--yes") == "channel-1 is deleted.\n"
    assert "not a channel id" in admin.expect_failure("channels", "show", "x", code=2)


def test_the_secret_of_a_webhook_is_the_only_output(admin: Shell) -> None:
    added = admin("channels", "add", "Hook", "--webhook", URL, "--format", "cloudevents")
    assert (added.exit_code, added.stdout[:6], len(added.stdout.splitlines())) == (0, "whsec_", 1), added
    assert "shown only once" in added.stderr
    identity = added.stderr.split()[0]
    assert "very-secret" not in admin.text("channels", "show", identity)
    rotated = admin("channels", "secret", identity)
    assert rotated.stdout.startswith("whsec_")
    assert rotated.stdout != added.stdout


@pytest.mark.rule("rest-281")
def test_an_alarm_is_silenced_for_a_while(service: RunningService, admin: Shell) -> None:
    log = PresenceLog(service.database, service.clock())
    office, devices = log.add_gateway(1, 2)
    log.set_device(devices[0], office, connected=False)
    log.run(11 * MINUTE)
    silenced = admin.text("alarms", "silence", "1", "--for", "2h", "--note", "Works on the roof")
    assert silenced.startswith("alarm-1 is silenced until 20")
    assert "Silenced by " in admin.text("alarms", "show", "1")
    (listed,) = admin.json_lines("alarms", "list", "--state", "silenced")
    assert listed["id"] == "alarm-1"
    assert admin.text("alarms", "unsilence", "1").startswith("alarm-1 is not silenced: ")
    for duration, code in (("2", 2), ("91d", 2), ("59s", 2)):
        admin.expect_failure("alarms", "silence", "1", "--for", duration, code=code)
