"""Reads the settings again and applies those that can be changed while the service runs.

The parts of the service register the settings that they can apply. A change of any other setting needs a
restart. If the new settings are invalid, nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.errors.startup import WrongSettings
from meshfleet.rest.operations import ReloadedSettings
from meshfleet.service.server_certificate import read_file_version
from meshfleet.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshfleet.service.systemd import SystemdNotifier
    from meshfleet.settings import Settings

_log = logging.getLogger(__name__)


class _Applier(NamedTuple):
    """Function of a part of the service that applies changed settings, and the names of these settings."""

    names: tuple[str, ...]
    apply: Callable[[Settings], None]
    is_possible: Callable[[Settings], bool]

    def select(self, changed: Sequence[str]) -> list[str]:
        """Return those of the changed settings that the function applies.

        The name of a table, such as `limits`, stands for all settings in it.
        """
        tables = tuple(f"{name}." for name in self.names)
        return [name for name in changed if name in self.names or name.startswith(tables)]


class SettingsReloader:
    """Reads the settings again, and applies changed settings to a running service."""

    def __init__(self, settings: Settings, load: Callable[[], Settings], notifier: SystemdNotifier) -> None:
        """Create the reloader of a service that was started with `settings`.

        `load` reads the settings again from the same sources, or raises `WrongSettings`.
        """
        self._load = load
        self._notifier = notifier
        self._in_use = _read_values(settings)
        self._appliers: list[_Applier] = []
        self._is_requested = asyncio.Event()
        self._lock = asyncio.Lock()

    def register(
        self,
        *names: str,
        apply: Callable[[Settings], None],
        is_possible: Callable[[Settings], bool] = lambda _: True,
        may_fail: bool = False,
    ) -> None:
        """Register the function `apply`, which is called after a reload if one of the named settings changed.

        A name is that of a setting, or of a table of settings. If `is_possible` returns False for the new
        settings, these settings need a restart instead. Set `may_fail` for a function that may raise
        `WrongSettings`: it is called before the others, so that its failure leaves nothing changed.
        """
        self._appliers.insert(0 if may_fail else len(self._appliers), _Applier(names, apply, is_possible))

    def request(self) -> None:
        """Request a reload of the settings, which `run` does. Called when a signal arrives."""
        self._is_requested.set()

    async def run(self) -> None:
        """Reload the settings after each call of `request`, until canceled."""
        while True:
            await self._is_requested.wait()
            self._is_requested.clear()
            try:
                await self.reload()
            except WrongSettings as exc:
                _log.error(
                    "the settings cannot be reloaded; the previous settings stay in use: %s",
                    "; ".join(str(exc).splitlines()),
                )
            except Exception:  # noqa: BLE001 # a wrong file must not end the service
                _log.exception("the settings cannot be reloaded; the previous settings stay in use")

    async def reload(self) -> ReloadedSettings:
        """Load the settings and apply the changes. Raise `WrongSettings` if the settings are invalid."""
        async with self._lock:
            self._notifier.send_reloading()
            try:
                settings = await asyncio.to_thread(self._load)
                return self._apply(settings, await asyncio.to_thread(_read_values, settings))
            finally:
                self._notifier.send_reloaded()

    def _apply(self, settings: Settings, values: dict[str, object]) -> ReloadedSettings:
        """Apply the changed settings, if possible. Return which are applied, and which need a restart."""
        changed = [name for name, value in values.items() if value != self._in_use[name]]
        in_use: set[str] = set()
        for applier in self._appliers:
            if (names := applier.select(changed)) and applier.is_possible(settings):
                applier.apply(settings)
                self._in_use |= {name: values[name] for name in names}
                in_use.update(names)
        applied = [name for name in changed if name in in_use]
        needs_restart = [name for name in changed if name not in in_use]
        _log.warning(
            "settings reloaded; in use now: %s; a restart is needed for: %s",
            ", ".join(applied) or "no changes",
            ", ".join(needs_restart) or "nothing",
        )
        return ReloadedSettings(applied=tuple(applied), needs_restart=tuple(needs_restart))


def _read_values(settings: Settings) -> dict[str, object]:
    """Return the values of all settings by name. The value of a file includes the version of the file."""
    values: dict[str, object] = {}
    for setting in SETTINGS:
        value = attrgetter(setting.attribute_path)(settings)
        values[setting.name] = (
            (value, read_file_version(value)) if setting.is_file and value is not None else value
        )
    return values
