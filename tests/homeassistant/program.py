"""Home Assistant with its MQTT integration, controlled by lines of JSON, in an environment of its own.

The first line on standard input has the options `folder`, `host`, `port`, `user` and `password`. Each further
line is a command with an `id`; the response has the same `id`, and either `result` or `error`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import traceback
from typing import TYPE_CHECKING, Any

# Home Assistant is not in the environment in which types are checked.
from homeassistant import bootstrap, config_entries, core, loader  # type: ignore[import-not-found,attr-defined,unused-ignore]
from homeassistant.helpers import area_registry, device_registry, entity_registry  # type: ignore[import-not-found,unused-ignore]
from homeassistant.setup import async_setup_component  # type: ignore[import-not-found,unused-ignore]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

DOMAIN = "mqtt"


class ProblemCollector(logging.Handler):
    """Collects warnings and errors of the MQTT integration, such as discovery messages that it refuses."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line of a log record."""
        if record.name.startswith("homeassistant.components.mqtt"):
            self.lines.append(self.format(record))


async def start(options: dict[str, Any], problems: ProblemCollector) -> Any:
    """Start Home Assistant. The integration has the values that its form would store, and nothing else."""
    hass = core.HomeAssistant(options["folder"])
    hass.config.skip_pip = True
    hass.config.components |= {"http", "file_upload"}  # for the frontend, which does not run
    loader.async_setup(hass)
    hass.config_entries = config_entries.ConfigEntries(hass, {})
    await bootstrap.async_load_base_functionality(hass)
    await hass.config_entries.async_initialize()
    logging.getLogger().addHandler(problems)
    if not await async_setup_component(hass, DOMAIN, {}):
        raise RuntimeError("the MQTT integration cannot be set up")
    if not hass.config_entries.async_entries(DOMAIN):
        data = {"broker": options["host"], "port": options["port"], "discovery": True}
        data |= {name: options[name] for name in ("user", "password") if options.get(name)}
        data |= {"username": data.pop("user")} if "user" in data else {}
        entry = config_entries.ConfigEntry(
            version=1, minor_version=1, domain=DOMAIN, title="broker", data=data, source="user"
        )
        await hass.config_entries.async_add(entry)
    (entry,) = hass.config_entries.async_entries(DOMAIN)
    if entry.state is config_entries.ConfigEntryState.SETUP_ERROR:
        raise RuntimeError(f"the MQTT integration cannot be set up: {entry.reason}")
    await hass.async_start()
    return hass


class Controller:
    """Carries out the commands of a test."""

    def __init__(self, hass: Any, problems: ProblemCollector) -> None:
        self._hass = hass
        self._problems = problems
        self._entities = entity_registry.async_get(hass)
        self._devices = device_registry.async_get(hass)
        self._areas = area_registry.async_get(hass)

    async def entities(self) -> list[dict[str, Any]]:
        """List all entities of the registry, with their states and devices."""
        return [self._describe(entry) for entry in self._entities.entities.values()]

    async def devices(self) -> list[dict[str, Any]]:
        """List all devices of the registry."""
        return [self._describe_device(each) for each in self._devices.devices.values()]

    async def enable(self, unique_ids: Sequence[str]) -> None:
        """Enable entities as a user does, and load the integration again, as Home Assistant then does."""
        for entry in list(self._entities.entities.values()):
            if entry.unique_id in unique_ids:
                self._entities.async_update_entity(entry.entity_id, disabled_by=None)
        (entry,) = self._hass.config_entries.async_entries(DOMAIN)
        await self._hass.config_entries.async_reload(entry.entry_id)

    async def call(self, domain: str, service: str, entity_id: str, data: dict[str, Any]) -> None:
        """Call a service for an entity, and wait until it has ended."""
        await self._hass.services.async_call(domain, service, {"entity_id": entity_id, **data}, blocking=True)

    async def problems(self) -> list[str]:
        """Return the warnings and errors of the integration so far."""
        return self._problems.lines

    def _describe(self, entry: Any) -> dict[str, Any]:
        state = self._hass.states.get(entry.entity_id)
        device = entry.device_id and self._devices.async_get(entry.device_id)
        return {
            "entity_id": entry.entity_id,
            "unique_id": entry.unique_id,
            "domain": entry.domain,
            "name": entry.name or entry.original_name,
            "device_class": entry.original_device_class,
            "unit": entry.unit_of_measurement,
            "category": entry.entity_category,
            "is_disabled": entry.disabled_by is not None,
            "capabilities": dict(entry.capabilities or {}),
            "device": self._describe_device(device) if device else None,
            "state": state and state.state,
            "attributes": dict(state.attributes) if state else {},
        }

    def _describe_device(self, device: Any) -> dict[str, Any]:
        via = device.via_device_id and self._devices.async_get(device.via_device_id)
        area = device.area_id and self._areas.async_get_area(device.area_id)
        return {
            "identifiers": sorted(value for _, value in device.identifiers),
            "connections": sorted(device.connections),
            "name": device.name,
            "manufacturer": device.manufacturer,
            "model": device.model,
            "sw_version": device.sw_version,
            "hw_version": device.hw_version,
            "serial_number": device.serial_number,
            "configuration_url": device.configuration_url,
            "area": area and area.name,
            "via": sorted(value for _, value in via.identifiers) if via else None,
        }


async def read_commands() -> AsyncIterator[dict[str, Any]]:
    """Yield the lines of standard input until it ends."""
    reader = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


def respond(response: dict[str, Any]) -> None:
    """Write a response as one line."""
    sys.stdout.write(json.dumps(response, default=str) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Run Home Assistant until standard input ends or the command `stop` arrives."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    commands = read_commands()
    problems = ProblemCollector()
    hass = await start(await anext(commands), problems)
    controller = Controller(hass, problems)
    respond({"id": 0, "result": "started"})
    async for command in commands:
        number, name = command.pop("id"), command.pop("do")
        if name == "stop":
            break
        try:
            respond({"id": number, "result": await getattr(controller, name)(**command)})
        except Exception:  # noqa: BLE001 # the test gets the traceback
            respond({"id": number, "error": traceback.format_exc()})
    with contextlib.suppress(asyncio.TimeoutError):
        await hass.async_stop()


if __name__ == "__main__":
    asyncio.run(main())
