"""Helpers for tests of running commands: the command as a program, and an independent MQTT client (paho)."""

from __future__ import annotations

import atexit
import json
import os
import re
import resource
import select
import shutil
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from queue import Empty, Queue
from tempfile import mkdtemp
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import httpx
from click.testing import CliRunner
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.cli import main
from meshfleet.rest.paths import LOGIN_PATH
from tests.cli.forked_process import PIPE_SIZE, ForkedProcess
from tests.eventually import eventually
from tests.program_logs import register_log
from tests.servers import NO_TRUSTED_AUTHORITIES

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence
    from signal import Signals

    from click.testing import Result

    from tests.servers import Mosquitto

MESHFLEET = Path(sys.executable).with_name("meshfleet")

TEST_TIMEOUT = 60.0
"""Seconds to wait for anything; reached only in a test that fails."""

_LOGS = Path(mkdtemp(prefix="meshfleet-programs-"))
atexit.register(shutil.rmtree, _LOGS, ignore_errors=True)
_numbers = count()

_VARIABLES = ("MESHFLEET_BROKER", "MESHFLEET_MESH", "MESHFLEET_PASSWORD", "MESHFLEET_TLS_CA")


def run_command(*arguments: str, stdin: str = "", **variables: str) -> Result:
    """Run a command in this process until it ends."""
    return CliRunner().invoke(
        main, arguments, input=stdin, env={**dict.fromkeys(_VARIABLES), **variables}, prog_name="meshfleet"
    )


def log_in(
    url: str, password: str | None, user: str = "admin", *, trusting: ssl.SSLContext = NO_TRUSTED_AUTHORITIES
) -> httpx.Response:
    """Log in to a service, without TLS unless a context is given."""
    credentials = {"username": user, "password": password}
    return httpx.post(url + LOGIN_PATH, json=credentials, verify=trusting, timeout=TEST_TIMEOUT)


def open_client(url: str, password: str, user: str = "admin") -> httpx.Client:
    """Log in to a service without TLS, and create a client that sends the token."""
    headers = {"Authorization": f"Bearer {log_in(url, password, user).json()['authToken']}"}
    return httpx.Client(base_url=url, headers=headers, verify=NO_TRUSTED_AUTHORITIES, timeout=TEST_TIMEOUT)


def broker_url(broker: Mosquitto, *, user: str = "", scheme: str = "mqtt") -> str:
    """Return the URL of a broker; `user` is a name, a colon and a password."""
    return f"{scheme}://{user}{'@' if user else ''}{broker.address.host}:{broker.address.port}"


class Process(Protocol):
    """Needed methods of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def kill(self) -> None: ...
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int, /) -> None: ...
    def communicate(self, *, timeout: float) -> tuple[bytes, object]: ...


class Program:
    """Command in a process of its own, which is killed when the block ends.

    It is forked from a process that has imported everything, unless the shell runs something `before`. A test
    that fails shows its standard error.
    """

    def __init__(self, *arguments: str, before: str = "", umask: str = "", **variables: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
        environment = {**inherited, "MESHFLEET_MQTT": "127.0.0.1:0", **variables}
        self._errors = register_log(f"meshfleet {arguments[0]}", _LOGS / f"{next(_numbers)}.log")
        self._errors.touch()
        self._process: Process = (
            _start_in_shell(before, arguments, environment, self._errors)
            if before
            else ForkedProcess(arguments, environment, self._errors, umask)
        )
        self._output = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=TEST_TIMEOUT)

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def memory(self) -> float:
        """Resident memory in MiB."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text("utf-8").split()[1]
        return int(pages) * resource.getpagesize() / 2**20

    def read_line(self) -> str:
        """Read the next line of its standard output."""
        output = self._process.stdout
        assert output is not None
        line = b""
        until = time.monotonic() + TEST_TIMEOUT
        while (
            not line.endswith(b"\n") and select.select([output], [], [], max(0, until - time.monotonic()))[0]
        ):
            line += (char := output.read(1) or b"")
            if not char:
                break
        self._output += line
        assert line, "the program printed nothing"
        return line.decode()

    @property
    def errors(self) -> str:
        """Standard error so far."""
        return self._errors.read_text("utf-8")

    def send_signal(self, signal: Signals) -> None:
        """Send a signal that does not end the program."""
        self._process.send_signal(signal)

    def wait_for_exit(self, signal: Signals | None = None) -> tuple[int, str, str]:
        """Send a signal, if given, and wait for the end. Return exit code, standard output and error."""
        if signal is not None:
            self._process.send_signal(signal)
        output, _ = self._process.communicate(timeout=TEST_TIMEOUT)
        assert self._process.returncode is not None
        return self._process.returncode, (self._output + output).decode(), self.errors


def _start_in_shell(
    before: str, arguments: Sequence[str], environment: Mapping[str, str], errors: Path
) -> Process:
    """Start a program from a shell, without forking it from the preloaded process."""
    with errors.open("ab") as log:
        return subprocess.Popen(
            ["/bin/sh", "-c", f'{before}; exec "$0" "$@"', str(MESHFLEET), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            pipesize=PIPE_SIZE,
            env=environment,
        )


class ReceivedMessage(NamedTuple):
    """Message received by `PahoListener`."""

    topic: str
    payload: bytes
    qos: int
    retain: bool

    @property
    def json(self) -> Any:
        """Decoded payload."""
        return json.loads(self.payload)


class PahoListener:
    """MQTT client that is subscribed to all topics and can publish."""

    def __init__(self, broker: Mosquitto, **login: str) -> None:
        self._client = Client(CallbackAPIVersion.VERSION2)
        if login:
            self._client.username_pw_set(**login)
        self._received: Queue[ReceivedMessage] = Queue()
        self._subscribed: Queue[object] = Queue()
        self._client.on_message = lambda _, __, message: self._received.put(_to_received(message))
        self._client.on_subscribe = lambda *_: self._subscribed.put(None)
        self._client.connect(*broker.address)

    def __enter__(self) -> Self:
        self._client.loop_start()
        self._client.subscribe("#", 1)
        self._subscribed.get(timeout=TEST_TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, topic: str, payload: bytes = b"") -> None:
        """Publish a message with QoS 1, and wait for its acknowledgment."""
        self._client.publish(topic, payload, 1).wait_for_publish(TEST_TIMEOUT)

    def publish_retained(self, topic: str, payload: bytes) -> None:
        """Publish a retained message with QoS 1, and wait for its acknowledgment."""
        self._client.publish(topic, payload, 1, retain=True).wait_for_publish(TEST_TIMEOUT)

    def receive_until(self, topic: str) -> list[ReceivedMessage]:
        """Return all messages before the next one with a topic."""
        messages: list[ReceivedMessage] = []
        while (message := self._received.get(timeout=TEST_TIMEOUT)).topic != topic:
            messages.append(message)
        return messages

    def receive_now(self) -> ReceivedMessage | None:
        """Return the next message that has arrived; None if there is none."""
        try:
            return self._received.get_nowait()
        except Empty:
            return None

    def receive(self, pattern: str) -> ReceivedMessage:
        """Wait for the next message whose whole topic matches a regular expression."""
        until = time.monotonic() + TEST_TIMEOUT
        while True:
            try:
                message = self._received.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                raise AssertionError(f"no message with topic {pattern}") from None
            if re.fullmatch(pattern, message.topic):
                return message


def _to_received(message: MQTTMessage) -> ReceivedMessage:
    return ReceivedMessage(message.topic, bytes(message.payload), message.qos, message.retain)


def wait_for_log(folder: Path, pattern: str, times: int = 1) -> list[str]:
    """Wait until a pattern occurs a number of times in the log of a broker, and return the matches."""

    def find_lines() -> list[str]:
        lines = re.findall(pattern, (folder / "mosquitto.log").read_text(), re.MULTILINE)
        return lines if len(lines) >= times else []

    return eventually(find_lines, f"that the broker logs {pattern}")


DISCONNECTED_LOG = r"Client (\S+) (?:\[\S+\] )?disconnected\.$"
"""Log line of a broker for a client that sent DISCONNECT, instead of just closing the connection."""
