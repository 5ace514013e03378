"""Settings that are reloaded: what is applied, what needs a restart, and what changes nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import Fault
from meshfleet.errors.startup import WrongSettings
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.service.reload import SettingsReloader
from meshfleet.service.systemd import SystemdNotifier
from meshfleet.settings import Retention, Settings
from tests.eventually import eventually_async

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class ChangingSettings:
    """Settings in a source that changes, and a reloader that applies some of them."""

    def __init__(self, settings: Settings) -> None:
        self.source: Settings | WrongSettings = settings
        self.reloader = SettingsReloader(settings, self._load, SystemdNotifier({}))
        self.applied: list[Settings] = []

    def _load(self) -> Settings:
        if isinstance(self.source, WrongSettings):
            raise self.source
        return self.source


@pytest.mark.rule("rest-224")
async def test_changes_are_applied_or_need_a_restart() -> None:
    changing = ChangingSettings(Settings())
    reloader = changing.reloader
    reloader.register("limits", apply=changing.applied.append)
    reloader.register("log-level", apply=changing.applied.append)
    changed = Settings(limits=BrokerLimits(retained=5, subscriptions=7), acks=False, log_level="info")
    changing.source = changed
    result = await reloader.reload()
    assert set(result.applied) == {"limits.retained", "limits.subscriptions", "log-level"}
    assert result.needs_restart == ("acks",)
    assert changing.applied == [changed, changed]
    again = await reloader.reload()
    assert (again.applied, again.needs_restart) == ((), ("acks",)), "a restart is still needed"
    changing.source = Settings()
    assert (await reloader.reload()).needs_restart == ()


async def test_a_table_does_not_stand_for_settings_with_a_similar_name() -> None:
    changing = ChangingSettings(Settings())
    changing.reloader.register("requests", "tls", apply=changing.applied.append)
    changing.source = Settings(retention=Retention(request=7200), requests_max_age=5)
    result = await changing.reloader.reload()
    assert (result.applied, result.needs_restart) == (("requests.max-age",), ("retention.request",))


@pytest.mark.rule("rest-224")
async def test_wrong_settings_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    changing = ChangingSettings(Settings())
    changing.reloader.register("acks", apply=changing.applied.append)
    changing.source = WrongSettings([Fault("meshfleet.toml: acks", "is wrong"), Fault("--mqtt", "too")])
    with pytest.raises(WrongSettings):
        await changing.reloader.reload()
    running = asyncio.create_task(changing.reloader.run())
    changing.reloader.request()
    await eventually_async(lambda: caplog.records, "that the mistakes are logged")
    changing.source = Settings(acks=False)
    changing.reloader.request()
    await eventually_async(lambda: changing.applied, "that the corrected settings are applied")
    running.cancel()
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error.endswith("meshfleet.toml: acks: is wrong; --mqtt: too")


async def test_a_function_that_fails_is_called_before_the_others() -> None:
    changing = ChangingSettings(Settings())

    def fail(_settings: Settings) -> None:
        raise WrongSettings([Fault("topic-prefix", "cannot be used")])

    changing.reloader.register("acks", apply=changing.applied.append)
    changing.reloader.register("topic-prefix", apply=fail, may_fail=True)
    changing.source = Settings(acks=False, topic_prefix="x")
    with pytest.raises(WrongSettings):
        await changing.reloader.reload()
    assert changing.applied == []


async def test_a_changed_file_is_a_changed_setting(tmp_path: Path) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.write_text("one")
    changing = ChangingSettings(Settings(broker_ca=authorities))
    assert (await changing.reloader.reload()).needs_restart == ()
    (tmp_path / "new.pem").write_text("two")
    (tmp_path / "new.pem").rename(authorities)
    assert (await changing.reloader.reload()).needs_restart == ("broker-ca",)


async def test_settings_that_cannot_be_applied_as_they_are_need_a_restart() -> None:
    changing = ChangingSettings(Settings())
    changing.reloader.register(
        "acks", apply=changing.applied.append, is_possible=lambda changed: changed.acks
    )
    changing.source = Settings(acks=False)
    assert (await changing.reloader.reload()).needs_restart == ("acks",)
    assert changing.applied == []
