"""`meshfleet gateway` as a program of its own, and what a client does with it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from signal import SIGTERM
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tests.cli import programs
from tests.cli.programs import Program
from tests.emulator.conformance.recorder import Recorder
from tests.emulator.conformance.site import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.emulator.conformance.recorder import RecordedMessage
    from tests.emulator.conformance.variants import Variant
    from tests.servers import ServerAddress

SPEED = "300"
"""Times as fast as life: a device reports five times in a second."""

_SLOW = "this machine is too slow"
"""A gateway says so, and it is no fault of the gateway."""

_NUMBERS = count(1)
_IDS = count(1)


def fresh_mac() -> str:
    """The MAC of a gateway that the broker has not heard of."""
    return f"d0cf5e{next(_NUMBERS):06x}"


def run_command(*arguments: str) -> str:
    """Run the command to its end; gives what it printed."""
    result = programs.run_command(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


class GatewayProcess:
    """A gateway that runs, seen from the other side of the broker."""

    def __init__(
        self, mac: str, variant: Variant, recorder: Recorder, *, started: datetime, prefix: str = ""
    ) -> None:
        self.mac = mac
        self.variant = variant
        self.recorder = recorder
        self.started = started
        """A moment before the program was started."""
        self._front = f"{prefix}/mt" if prefix else "mt"

    def has_version(self, version: str) -> bool:
        """Whether the gateway is at a version, or newer."""
        return _numbers(self.variant.version) >= _numbers(version)

    def kind(self, kind: str) -> str:
        """A kind of report as it is called in this mode."""
        return f"{kind}-decoded" if self.variant.mode == "decoded" else kind

    def identifier(self, raw: str, name: str) -> str:
        """An identifier as topics of reports have it in this mode."""
        return name if self.variant.mode == "decoded" else raw

    def value_in_mode(self, raw: object, decoded: object) -> object:
        """A value as reports have it in this mode."""
        return decoded if self.variant.mode == "decoded" else raw

    def send(self, device: str, suffix: str, payload: bytes) -> None:
        """Send a request as it is."""
        self.recorder.publish(f"{self._front}/gateway/{self.mac}/request/{device}/{suffix}", payload)

    def responses(self, device: str, suffix: str, *, after: int) -> list[RecordedMessage]:
        """The responses that have come to requests of a kind."""
        return [
            heard for heard in self.recorder.messages_since(after) if self._is_answer(heard, device, suffix)
        ]

    def exchange(self, device: str, suffix: str, payload: bytes) -> dict[str, Any]:
        """Send a request as it is, and wait for the response on the topic that belongs to it."""
        mark = self.recorder.mark
        self.send(device, suffix, payload)
        return self.recorder.wait_for(
            lambda heard: self._is_answer(heard, device, suffix), after=mark
        ).payload

    def request(self, device: str, suffix: str, **parameters: Any) -> dict[str, Any]:
        """Send a request with an id of its own; gives the response, which is checked to have that id."""
        given = f"request-{next(_IDS)}"
        response = self.exchange(device, suffix, json.dumps({"id": given, **parameters}).encode())
        assert response.pop("id") == given
        return response

    def wait_until_idle(self, device: str) -> None:
        """Wait until a device has worked off what was sent before, whatever priority that had."""
        self.request(device, "read/8000", priority=0)

    def report(
        self,
        device: str,
        kind: str,
        identifier: str | None = None,
        *,
        after: int = 0,
        where: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """A report of a device that fits, sooner or later."""
        return self.recorder.wait_for(
            lambda heard: heard.is_report(device, kind, identifier) and where(heard.payload), after=after
        ).payload

    def _is_answer(self, heard: RecordedMessage, device: str, suffix: str) -> bool:
        return heard.topic == f"{self._front}/gateway/{self.mac}/response/{device}/{suffix}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@contextmanager
def run_gateway(
    broker: ServerAddress,
    variant: Variant,
    site: Callable[[str], dict[str, Any]],
    *arguments: str,
    prefix: str = "",
) -> Iterator[GatewayProcess]:
    """Run a gateway, with somebody who hears all that it says from its first word on."""
    mac = fresh_mac()
    mine = f"{prefix}/mt/gateway/{mac}" if prefix else f"mt/gateway/{mac}"
    with (
        TemporaryDirectory(prefix="meshfleet-site-") as folder,
        Recorder(broker, f"{mine}/device/#", f"{mine}/response/#") as recorder,
    ):
        file = Path(folder) / "site.json"
        file.write_text(json.dumps(site(mac)))
        command = ["gateway", "--json", "--broker", f"mqtt://{broker.host}:{broker.port}"]
        command += ["--mac", mac, "--mode", variant.mode, "--api-version", variant.version, "--seed", SEED]
        command += ["--speed", SPEED, "--site", str(file), "--topic-prefix", prefix, *arguments]
        started = datetime.now(UTC)
        with Program(*command) as program:
            recorder.failure_reason = lambda: "" if program.is_running else f"it died: {program.errors}"
            assert json.loads(program.read_line())["event"] == "connected"
            yield GatewayProcess(mac, variant, recorder, started=started, prefix=prefix)
            complaints = [line for line in program.errors.splitlines() if _SLOW not in line]
            assert not complaints, complaints
            assert program.wait_for_exit(SIGTERM)[0] == 0
