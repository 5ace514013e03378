"""Carries out commands of Home Assistant as requests to devices (homeassistant-9, homeassistant-10).

Every client that may publish on the broker can send commands, so every part of a command is checked. Only
entities that discovery offers can be written, and only with values that the entity allows.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors import FleetError, quote_input
from meshfleet.errors.protocol import MalformedInput
from meshfleet.mqtt.broker.log_limiter import LogLimiter
from meshfleet.protocol.codes import Operation, Status
from meshfleet.protocol.identifiers.homeassistant import EntityPlatform, WriteMode
from meshfleet.protocol.identifiers.layouts import NumberLayout
from meshfleet.protocol.ids import mac_to_int
from meshfleet.rest.accounts import Role
from meshfleet.rest.requests import NewRequest, RequestState
from meshfleet.service.actor import Actor
from meshfleet.service.homeassistant.entities import OFF, ON, PRESS, is_shown
from meshfleet.service.homeassistant.state import BelievedValue
from meshfleet.service.requests.prepared_request import prepare_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.protocol.identifiers import IdentifierDefinition
    from meshfleet.rest.requests import RequestRecord
    from meshfleet.service.clock import Now
    from meshfleet.service.homeassistant.plan import PublicationPlan
    from meshfleet.service.homeassistant.state import ShownIdentifiers
    from meshfleet.service.homeassistant.topics import Command, IntegrationTopics
    from meshfleet.service.requests.dispatcher import RequestFacade

_log = logging.getLogger(__name__)

HOME_ASSISTANT: Final = Actor(name="homeassistant", role=Role.OPERATOR, kind="program")

_MAX_PAYLOAD_BYTES: Final = 64
_MAX_RUNNING: Final = 32
"""Maximum number of commands that wait for the response of a device; further commands are refused."""
_BURST: Final = 30
"""Maximum number of commands that are accepted at the same moment."""
_PER_SECOND: Final = 5.0
"""Maximum number of commands that are accepted per second, on average."""


class InvalidCommand(Exception):
    """Raised for a command that must not be carried out. The text of the exception is the reason."""


def parse_value(definition: IdentifierDefinition, payload: bytes) -> Any:
    """Convert the payload of a command to the JSON value to write; None for a button.

    Raise `InvalidCommand` if the entity of the identifier does not allow the payload.
    """
    entity = definition.homeassistant
    if entity is None or len(payload) > _MAX_PAYLOAD_BYTES:
        raise InvalidCommand("its payload is too long")
    text = payload.decode("utf-8", "replace")
    if entity.platform is EntityPlatform.NUMBER:
        return _parse_number(definition, text, entity.step)
    allowed: dict[str, Any] = {}
    if entity.platform is EntityPlatform.BUTTON:
        allowed = {PRESS: None}
    elif entity.write is WriteMode.CLEAR:
        allowed = {OFF: False}
    elif entity.write is WriteMode.SWITCH:
        allowed = {ON: True, OFF: False}
    if not allowed:
        raise InvalidCommand(f"{definition.name} cannot be written from Home Assistant")
    if text not in allowed:
        raise InvalidCommand(f"its payload {quote_input(text)} is not one of {', '.join(allowed)}")
    return allowed[text]


def _parse_number(definition: IdentifierDefinition, text: str, step: int) -> int | float:
    """Parse the number in a command. Raise `InvalidCommand` if the entity does not allow the number."""
    try:
        number = float(text)
    except ValueError:
        raise InvalidCommand(f"its payload {quote_input(text)} is not a number") from None
    low, high = definition.layout.value_range if isinstance(definition.layout, NumberLayout) else (0, 0)
    if not math.isfinite(number) or not low <= number <= high:
        raise InvalidCommand(f"its number {quote_input(text)} is not between {low} and {high}")
    if not number.is_integer() or int(number) % step:
        raise InvalidCommand(f"its number {quote_input(text)} is not a multiple of {step}")
    return int(number)


class _RateLimit:
    """Token bucket for commands: accepts `_BURST` commands at once, and `_PER_SECOND` on average."""

    def __init__(self) -> None:
        self._left = float(_BURST)
        self._filled_at: float | None = None

    def admit(self, now: float) -> bool:
        """Count a command. Return False if it exceeds the limit. `now` is a monotonic time in seconds."""
        if self._filled_at is not None:
            self._left = min(_BURST, self._left + (now - self._filled_at) * _PER_SECOND)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class CommandHandler:
    """Sends the commands of Home Assistant to devices as requests.

    If a command fails, the state of the device is published again, as Home Assistant may show the new value.
    """

    def __init__(  # noqa: PLR0913 # collaborators
        self,
        plan: PublicationPlan,
        shown: ShownIdentifiers,
        topics: IntegrationTopics,
        requests: RequestFacade,
        now: Now,
        *,
        wake: Callable[[], None],
    ) -> None:
        """Create the handler. `wake` is called when the plan has something new to publish."""
        self._plan = plan
        self._shown = shown
        self._topics = topics
        self._requests = requests
        self._now = now
        self._wake = wake
        self._rate_limit = _RateLimit()
        self._log_limiter = LogLimiter(lines=5)
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, message: Publish) -> None:
        """Start to carry out a command. Ignore a message that is not a command."""
        command = self._topics.parse_command(message.topic)
        if command is None:
            return
        try:
            self._start(command, message)
        except InvalidCommand as exc:
            self._report(command, str(exc))
            self._repeat_state(command)

    async def close(self) -> None:
        """Stop waiting for the outcomes of commands. Their requests go on and are recorded in the history."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, command: Command, message: Publish) -> None:
        if message.retain:
            raise InvalidCommand("it is retained, so that it would be repeated after every reconnect")
        definition = self._find_target(command)
        value = parse_value(definition, message.payload)
        is_full = len(self._tasks) >= _MAX_RUNNING
        if is_full or not self._rate_limit.admit(asyncio.get_running_loop().time()):
            raise InvalidCommand("there are too many commands at once")
        task = asyncio.create_task(self._carry_out(command, definition, value), name="homeassistant.command")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _find_target(self, command: Command) -> IdentifierDefinition:
        """Return the identifier that a command writes. Raise `InvalidCommand` if the device lacks it."""
        number = mac_to_int(command.mac)
        device, definition = self._plan.find_device(number), self._shown.catalogue.find(command.name)
        if device is None:
            raise InvalidCommand("the device is not shown in Home Assistant")
        is_named = definition is not None and definition.name == command.name
        if definition is None or not is_named:
            raise InvalidCommand(f"there is no entity {quote_input(command.name)}")
        if not is_shown(definition, device, self._plan.list_identifiers(number)):
            raise InvalidCommand(f"the device has no {definition.name}")
        return definition

    async def _carry_out(self, command: Command, definition: IdentifierDefinition, value: Any) -> None:
        """Send a command to the device. Show the written value, or log why the command failed."""
        try:
            problem = await self._send(command, definition, value)
        except (FleetError, MalformedInput) as exc:
            problem = str(exc)
        except Exception:  # noqa: BLE001 # one command must not end the others
            _log.exception("a command of Home Assistant failed with an unexpected error")
            problem = "there was an unexpected error"
        if problem is not None:
            self._report(command, problem)
            self._repeat_state(command)
        elif definition.homeassistant is not None and value is not None:
            written = BelievedValue(self._now(), value)
            self._plan.set_value(mac_to_int(command.mac), definition.id, written)
            self._wake()

    async def _send(self, command: Command, definition: IdentifierDefinition, value: Any) -> str | None:
        """Write the value of a command to the device. Return why that failed; None if it succeeded."""
        raw = definition.encode(value).hex() or None
        prepared = prepare_request(NewRequest(operation=Operation.WRITE, identifier=definition.id, value=raw))
        handle = await self._requests.dispatcher.submit(command.mac, prepared, by=HOME_ASSISTANT)
        return _find_problem(await asyncio.shield(handle.outcome))

    def _repeat_state(self, command: Command) -> None:
        """Publish the state of the device again, because Home Assistant may show the value of the command."""
        self._plan.repeat_state(mac_to_int(command.mac))
        self._wake()

    def _report(self, command: Command, reason: str) -> None:
        """Log why a command failed, unless too many failures of the same device were logged recently."""
        # Devices that are not shown share one limit: a client can send commands to any number of them.
        is_shown_device = self._plan.find_device(mac_to_int(command.mac)) is not None
        if dropped := self._log_limiter.count(command.mac if is_shown_device else None):
            _log.warning(
                "command of Home Assistant to %s, %s, not carried out (%d such commands since the last such"
                " line): %s",
                command.mac,
                quote_input(command.name),
                dropped,
                reason,
            )


def _find_problem(record: RequestRecord) -> str | None:
    """Return why a finished request failed; None if the device responded with status OK."""
    if record.problem is not None:
        return record.problem.detail
    if record.state is not RequestState.DONE or record.response is None:
        return "the outcome of the request is unknown"
    status = record.response.status
    if status == Status.OK:
        return None
    message = record.response.error_message
    return f"the device answered with status {status}{f': {message}' if message else ''}"
