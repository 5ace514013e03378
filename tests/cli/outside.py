"""What tests of commands that run need: the command as a program, and an MQTT client that is not ours."""

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

from click.testing import CliRunner
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.cli import main
from tests.cli.forked import PIPE_SIZE, Forked
from tests.eventually import eventually
from tests.logs import note_log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from signal import Signals

    from click.testing import Result

    from tests.servers import Mosquitto

MESHFLEET = Path(sys.executable).with_name("meshfleet")

PATIENCE = 60.0
"""Seconds until something must have happened; reached only when it is broken."""

_LOGS = Path(mkdtemp(prefix="meshfleet-programs-"))
atexit.register(shutil.rmtree, _LOGS, ignore_errors=True)
_numbers = count()

_VARIABLES = ("MESHFLEET_BROKER", "MESHFLEET_MESH", "MESHFLEET_PASSWORD", "MESHFLEET_TLS_CA")


def run(*arguments: str, stdin: str = "", **variables: str) -> Result:
    """Run a command that ends by itself, in this process."""
    return CliRunner().invoke(
        main, arguments, input=stdin, env={**dict.fromkeys(_VARIABLES), **variables}, prog_name="meshfleet"
    )


def url(broker: Mosquitto, *, user: str = "", scheme: str = "mqtt") -> str:
    """The address of a broker; `user` is a name, a colon and a password."""
    return f"{scheme}://{user}{'@' if user else ''}{broker.address.host}:{broker.address.port}"


class Process(Protocol):
    """What we need of `subprocess.Popen`."""

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
    """A command in a process of its own, which is gone when the block ends.

    It is forked from a program that has loaded everything, unless the shell does something `before`. A test
    that fails shows what it wrote to its errors.
    """

    def __init__(self, *arguments: str, before: str = "", umask: str = "", **variables: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
        environment = {**inherited, "MESHFLEET_MQTT": "127.0.0.1:0", **variables}
        self._errors = note_log(f"meshfleet {arguments[0]}", _LOGS / f"{next(_numbers)}.log")
        self._errors.touch()
        self._process: Process = (
            _started(before, arguments, environment, self._errors)
            if before
            else Forked(arguments, environment, self._errors, umask)
        )
        self._said = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def memory(self) -> float:
        """MiB of memory that it has."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text("utf-8").split()[1]
        return int(pages) * resource.getpagesize() / 2**20

    def line(self) -> str:
        """The next line on its standard output."""
        output = self._process.stdout
        assert output is not None
        line = b""
        until = time.monotonic() + PATIENCE
        while (
            not line.endswith(b"\n") and select.select([output], [], [], max(0, until - time.monotonic()))[0]
        ):
            line += (read := output.read(1) or b"")
            if not read:
                break
        self._said += line
        assert line, "it has nothing to say"
        return line.decode()

    @property
    def errors(self) -> str:
        """What it has written to its standard error so far."""
        return self._errors.read_text("utf-8")

    def end(self, how: Signals | None = None) -> tuple[int, str, str]:
        """Wait for its end, or bring it about: its exit code, and all that it said on both ways."""
        if how is not None:
            self._process.send_signal(how)
        output, _ = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode is not None
        return self._process.returncode, (self._said + output).decode(), self.errors


def _started(before: str, arguments: Sequence[str], environment: Mapping[str, str], errors: Path) -> Process:
    """Start a program as people do, by a shell."""
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


class Heard(NamedTuple):
    """A message that came."""

    topic: str
    payload: bytes
    qos: int
    retain: bool

    @property
    def said(self) -> Any:
        """Its payload."""
        return json.loads(self.payload)


class Ear:
    """Hears everything on a broker, and can say something."""

    def __init__(self, broker: Mosquitto, **login: str) -> None:
        self._client = Client(CallbackAPIVersion.VERSION2)
        if login:
            self._client.username_pw_set(**login)
        self._heard: Queue[Heard] = Queue()
        self._listens: Queue[object] = Queue()
        self._client.on_message = lambda _, __, message: self._heard.put(_plain(message))
        self._client.on_subscribe = lambda *_: self._listens.put(None)
        self._client.connect(*broker.address)

    def __enter__(self) -> Self:
        self._client.loop_start()
        self._client.subscribe("#", 1)
        self._listens.get(timeout=PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def say(self, topic: str, payload: bytes = b"") -> None:
        """Publish something."""
        self._client.publish(topic, payload, 1).wait_for_publish(PATIENCE)

    def hear(self, pattern: str) -> Heard:
        """The next message whose topic matches a regular expression as a whole."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                heard = self._heard.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                raise AssertionError(f"nobody says {pattern}") from None
            if re.fullmatch(pattern, heard.topic):
                return heard


def _plain(message: MQTTMessage) -> Heard:
    return Heard(message.topic, bytes(message.payload), message.qos, message.retain)


def wait_for_log(folder: Path, pattern: str, times: int = 1) -> list[str]:
    """What a pattern finds in the log of a broker in this folder, as soon as it is there so often."""

    def found() -> list[str]:
        lines = re.findall(pattern, (folder / "mosquitto.log").read_text(), re.MULTILINE)
        return lines if len(lines) >= times else []

    return eventually(found, f"that the broker logs {pattern}")


GOODBYE = r"Client (\S+) (?:\[\S+\] )?disconnected\.$"
"""In the log of a broker: this client took its leave, instead of being gone."""
