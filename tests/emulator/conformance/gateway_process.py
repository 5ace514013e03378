"""`meshfleet gateway` as a separate process, and a client that talks to it."""

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
"""Speed of the simulation: a device reports five times per second."""

_SLOW_WARNING = "this machine is too slow"
"""Warning of a gateway that is not a failure."""

_mac_numbers = count(1)
_request_numbers = count(1)


def fresh_mac() -> str:
    """Return a MAC that the broker has not seen yet."""
    return f"d0cf5e{next(_mac_numbers):06x}"


def run_command(*arguments: str) -> str:
    """Run a command to its end. Return its standard output."""
    result = programs.run_command(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


class GatewayProcess:
    """Running gateway, as a client of the broker sees it."""

    def __init__(
        self, mac: str, variant: Variant, recorder: Recorder, *, started: datetime, prefix: str = ""
    ) -> None:
        self.mac = mac
        self.variant = variant
        self.recorder = recorder
        self.started = started
        """Time shortly before the process was started."""
        self._topic_prefix = f"{prefix}/mt" if prefix else "mt"

    def has_version(self, version: str) -> bool:
        """Return whether the gateway has at least this API version."""
        return _parse_version(self.variant.version) >= _parse_version(version)

    def kind(self, kind: str) -> str:
        """Return the name of a kind of report in this mode."""
        return f"{kind}-decoded" if self.variant.mode == "decoded" else kind

    def identifier(self, raw: str, name: str) -> str:
        """Return an identifier as report topics spell it in this mode."""
        return name if self.variant.mode == "decoded" else raw

    def value_in_mode(self, raw: object, decoded: object) -> object:
        """Return a value as reports encode it in this mode."""
        return decoded if self.variant.mode == "decoded" else raw

    def send(self, device: str, suffix: str, payload: bytes) -> None:
        """Send a request with a raw payload."""
        self.recorder.publish(f"{self._topic_prefix}/gateway/{self.mac}/request/{device}/{suffix}", payload)

    def responses(self, device: str, suffix: str, *, after: int) -> list[RecordedMessage]:
        """Return the responses received to requests with this topic suffix."""
        return [
            message
            for message in self.recorder.messages_since(after)
            if self._is_response(message, device, suffix)
        ]

    def exchange(self, device: str, suffix: str, payload: bytes) -> dict[str, Any]:
        """Send a request with a raw payload. Wait for the response on its topic."""
        mark = self.recorder.mark
        self.send(device, suffix, payload)
        return self.recorder.wait_for(
            lambda message: self._is_response(message, device, suffix), after=mark
        ).payload

    def request(self, device: str, suffix: str, **parameters: Any) -> dict[str, Any]:
        """Send a request with a new id. Return the response after checking its id."""
        request_id = f"request-{next(_request_numbers)}"
        response = self.exchange(device, suffix, json.dumps({"id": request_id, **parameters}).encode())
        assert response.pop("id") == request_id
        return response

    def wait_until_idle(self, device: str) -> None:
        """Wait until a device has executed all requests sent before, whatever their priority."""
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
        """Wait for a matching report of a device."""
        return self.recorder.wait_for(
            lambda message: message.is_report(device, kind, identifier) and where(message.payload),
            after=after,
        ).payload

    def _is_response(self, message: RecordedMessage, device: str, suffix: str) -> bool:
        return message.topic == f"{self._topic_prefix}/gateway/{self.mac}/response/{device}/{suffix}"


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@contextmanager
def run_gateway(
    broker: ServerAddress,
    variant: Variant,
    site: Callable[[str], dict[str, Any]],
    *arguments: str,
    prefix: str = "",
) -> Iterator[GatewayProcess]:
    """Run a gateway, with a recorder of all its messages from the first one on."""
    mac = fresh_mac()
    topic_prefix = f"{prefix}/mt/gateway/{mac}" if prefix else f"mt/gateway/{mac}"
    with (
        TemporaryDirectory(prefix="meshfleet-site-") as directory,
        Recorder(broker, f"{topic_prefix}/device/#", f"{topic_prefix}/response/#") as recorder,
    ):
        site_file = Path(directory) / "site.json"
        site_file.write_text(json.dumps(site(mac)))
        command = ["gateway", "--json", "--broker", f"mqtt://{broker.host}:{broker.port}"]
        command += ["--mac", mac, "--mode", variant.mode, "--api-version", variant.version, "--seed", SEED]
        command += ["--speed", SPEED, "--site", str(site_file), "--topic-prefix", prefix, *arguments]
        started = datetime.now(UTC)
        with Program(*command) as program:
            recorder.failure_reason = lambda: (
                "" if program.is_running else f"gateway exited: {program.errors}"
            )
            assert json.loads(program.read_line())["event"] == "connected"
            yield GatewayProcess(mac, variant, recorder, started=started, prefix=prefix)
            errors = [line for line in program.errors.splitlines() if _SLOW_WARNING not in line]
            assert not errors, errors
            assert program.wait_for_exit(SIGTERM)[0] == 0
