"""Service, its broker or mosquitto, a real Home Assistant, and a gateway whose reports a test chooses."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.protocol.ids import to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.rest.accounts import Role
from tests.cli.programs import TEST_TIMEOUT
from tests.eventually import eventually
from tests.homeassistant.home_assistant import HomeAssistant
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.servers import Mosquitto
from tests.service.embedded_broker.mqtt_accounts import Credentials

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import ServerAddress

GATEWAY: Final = "02005e000001"
DEVICE: Final = "ca5bda180004"
BROKERS: Final = ("mosquitto", "embedded")


class ScriptedGateway:
    """Gateway that sends the reports that a test chooses, through paho-mqtt. It answers no requests."""

    def __init__(self, address: ServerAddress, credentials: Credentials) -> None:
        self._client = Client(CallbackAPIVersion.VERSION2, credentials.user)
        self._client.username_pw_set(*credentials)
        self._address = address
        self._seq = 0

    def __enter__(self) -> Self:
        self._client.connect(*self._address)
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def report(self, kind: str, name: str, value: object, device: str = DEVICE, **fields: object) -> None:
        """Send a decoded report, and wait until the service has committed it."""
        self._seq = (self._seq + 1) % 256
        self.send(f"{device}/{kind}-decoded/{name}", {"seq": self._seq, "value": value, **fields})

    def heartbeat(self, device: str = DEVICE) -> None:
        """Send a heartbeat, after which the device counts as connected."""
        self._seq = (self._seq + 1) % 256
        self.send(f"{device}/heartbeat", {"seq": self._seq, "status": 0, "lastCount": 1})

    def send(self, topic: str, payload: dict[str, Any]) -> None:
        """Send a report with the time of now, and wait until the service has committed it."""
        # The service may have been restarted; a client that is not connected refuses to wait.
        eventually(self._client.is_connected, "the connection of the gateway")
        payload = {"time": format_millis(time.time_ns() // 1_000_000), **payload}
        message = self._client.publish(f"mt/gateway/{GATEWAY}/device/{topic}", json.dumps(payload), 1)
        message.wait_for_publish(TEST_TIMEOUT)


class House:
    """Programs of a house in which Home Assistant shows the devices of the service."""

    def __init__(self, folder: Path, broker: str, *options: str, role: Role = Role.OPERATOR) -> None:
        """`broker` is `mosquitto` or `embedded`; `options` are further ones of the service."""
        self._folder = folder
        self._role = role
        self._options = options
        self.mosquitto = Mosquitto(folder) if broker == "mosquitto" else None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            url = "embedded"
            if self.mosquitto is not None:
                stack.enter_context(self.mosquitto)
                url = "mqtt://{}:{}".format(*self.mosquitto.address)
            options = ["--homeassistant-broker", url, "--homeassistant-form", "entity", *self._options]
            self.service = stack.enter_context(
                ServiceProcess(self._folder / "service", *loopback_options("--mqtt"), *options)
            )
            self._account = self.service.claim(GATEWAY)
            self.gateway = stack.enter_context(self.open_gateway())
            self.home_assistant = stack.enter_context(self._open_home_assistant())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open_gateway(self) -> ScriptedGateway:
        """Create the gateway, which connects in its `with` block."""
        return ScriptedGateway(self.service.mqtt["mqtt"], self._account)

    def _open_home_assistant(self) -> HomeAssistant:
        folder = self._folder / "homeassistant"
        if self.mosquitto is not None:
            return HomeAssistant(folder, self.mosquitto.address)
        key = {"name": "home", "role": self._role, "kind": "homeassistant"}
        issued = self.service.call("POST", "/api/v1/api-keys", key)
        return HomeAssistant(folder, self.service.mqtt["mqtt"], Credentials("apikey", issued["key"]))

    def rename(self, name: str, device: str = DEVICE) -> None:
        """Rename a device."""
        path = f"/api/v1/devices/{to_device_id(device)}/friendly-name"  # type: ignore[arg-type] # a MAC
        self.service.call("PUT", path, {"name": name})

    def wait_for_entities(self, *names: str, device: str = DEVICE) -> None:
        """Wait until Home Assistant has the entities of a device with these ids."""
        wanted = {f"meshfleet_{device}_{name}" for name in names}

        def are_there() -> bool:
            missing = wanted - self.home_assistant.entities().keys()
            assert not missing, missing
            return True

        eventually(are_there, f"the entities {', '.join(names)}")
