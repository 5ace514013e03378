"""A real Home Assistant in a process of its own, with methods of its user."""

from __future__ import annotations

import json
import subprocess
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from msgspec import Struct, convert

from tests.eventually import eventually
from tests.external_tools import HOME_ASSISTANT, require
from tests.program_logs import register_log

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.servers import ServerAddress
    from tests.service.embedded_broker.mqtt_accounts import Credentials

_PROGRAM = Path(__file__).with_name("program.py")
_STOP_SECONDS = 60.0


class Device(Struct, frozen=True):
    """Device as Home Assistant shows it."""

    identifiers: list[str]
    connections: list[tuple[str, str]]
    name: str | None
    manufacturer: str | None
    model: str | None
    sw_version: str | None
    hw_version: str | None
    serial_number: str | None
    configuration_url: str | None
    area: str | None
    via: list[str] | None


class Entity(Struct, frozen=True):
    """Entity as Home Assistant shows it. A disabled entity has no state."""

    entity_id: str
    unique_id: str
    domain: str
    name: str | None
    device_class: str | None
    unit: str | None
    category: str | None
    is_disabled: bool
    capabilities: dict[str, Any]
    device: Device | None
    state: str | None
    attributes: dict[str, Any]


class HomeAssistant:
    """Home Assistant that uses a broker with its default options. It keeps its registries in a directory."""

    def __init__(self, folder: Path, broker: ServerAddress, credentials: Credentials | None = None) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "configuration.yaml").touch()
        self._options: dict[str, object] = {"folder": str(folder), **broker._asdict()}
        if credentials is not None:
            self._options |= credentials._asdict()
        self._command = [str(require(HOME_ASSISTANT)), str(_PROGRAM)]
        self._log = register_log("Home Assistant", folder / "home-assistant.log")
        self._numbers = count(1)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()

    def start(self) -> None:
        """Start Home Assistant, and wait until it has started."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._write(self._options)  # on standard input: other users can see the arguments of a program
        assert self._read() == {"id": 0, "result": "started"}

    def stop(self) -> None:
        """Stop Home Assistant, which stores its registries."""
        assert self._process is not None
        process, self._process = self._process, None
        with process:
            try:
                process.communicate(
                    json.dumps({"id": next(self._numbers), "do": "stop"}) + "\n", _STOP_SECONDS
                )
            finally:
                process.kill()

    def kill(self) -> None:
        """Kill Home Assistant with SIGKILL: its broker publishes its will."""
        assert self._process is not None
        process, self._process = self._process, None
        with process:
            process.kill()

    def entities(self) -> dict[str, Entity]:
        """Return all entities by unique id."""
        found: list[Entity] = convert(self._request("entities"), list[Entity])
        return {each.unique_id: each for each in found}

    def devices(self) -> dict[str, Device]:
        """Return all devices by identifier."""
        found: list[Device] = convert(self._request("devices"), list[Device])
        return {identifier: each for each in found for identifier in each.identifiers}

    def entity(self, unique_id: str) -> Entity:
        """Return an entity, which must exist."""
        entities = self.entities()
        assert unique_id in entities, f"no entity {unique_id} among {sorted(entities)}"
        return entities[unique_id]

    def wait_for_state(self, unique_id: str, state: str) -> Entity:
        """Wait until an entity has a state."""

        def read() -> Entity:
            entity = self.entity(unique_id)
            assert entity.state == state, f"{unique_id} is {entity.state}"
            return entity

        return eventually(read, f"state {state} of {unique_id}")

    def enable(self, unique_ids: Collection[str]) -> None:
        """Enable entities that are disabled by default."""
        self._request("enable", unique_ids=list(unique_ids))

    def call(self, service: str, unique_id: str, **data: object) -> None:
        """Call a service for an entity, such as `press` for a button."""
        entity = self.entity(unique_id)
        self._request("call", domain=entity.domain, service=service, entity_id=entity.entity_id, data=data)

    def problems(self) -> list[str]:
        """Return the warnings and errors of the MQTT integration, such as refused discovery messages."""
        found: list[str] = self._request("problems")
        return found

    def _request(self, name: str, **options: object) -> Any:
        number = next(self._numbers)
        self._write({"id": number, "do": name, **options})
        response = self._read()
        assert response["id"] == number
        assert "error" not in response, response["error"]
        return response["result"]

    def _write(self, line: dict[str, object]) -> None:
        stream = self._stream("stdin")
        stream.write(json.dumps(line) + "\n")
        stream.flush()

    def _read(self) -> dict[str, Any]:
        line = self._stream("stdout").readline()
        assert line, f"Home Assistant has ended: {self._log.read_text(errors='replace')[-2000:]}"
        response: dict[str, Any] = json.loads(line)
        return response

    def _stream(self, name: str) -> IO[str]:
        assert self._process is not None, "Home Assistant is not running"
        stream: IO[str] = getattr(self._process, name)
        return stream
