"""The bodies of the REST interface, its paths, and the rules for what people type into it."""

from __future__ import annotations

import re
import unicodedata
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from meshfleet.errors import MalformedPayload, MalformedText
from meshfleet.wire import payload

if TYPE_CHECKING:
    from meshfleet.wire.ids import DeviceId, Mac

TOKEN_LIFETIME: Final = timedelta(minutes=30)

MIN_RESULTS: Final = 1
MAX_RESULTS: Final = 1000
DEFAULT_RESULTS: Final = 100
"""`MaxResults` on lists (rest-23)."""

LOGIN: Final = "/api/v1/auth/login"
DEVICES: Final = "/api/v1/devices"
LABELS: Final = "/api/v1/labels"
GATEWAYS: Final = "/api/v1/gateways"


def friendly_name_path(device: DeviceId) -> str:
    """Where a device is renamed (rest-43)."""
    return f"{DEVICES}/{device}/friendly-name"


def device_label_path(device: DeviceId, label: str) -> str:
    """Where a label is taken off a device; any label fits into a path."""
    return f"{DEVICES}/{device}/labels/{quote(label, safe='')}"


def credentials_path(gateway: Mac) -> str:
    """Where a gateway gets a new password (rest-73)."""
    return f"{GATEWAYS}/{gateway}/credentials"


class Body(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is answered. Clients ignore fields that they do not know."""


class Ask(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """What is asked. Unknown fields are refused: a misspelt one must not be taken for absent (rest-5)."""


class Connectivity(Body, frozen=True, kw_only=True):
    """Whether a device is connected, and since when it is or is not."""

    connected: bool
    timestamp: str
    """As `times.write_time` spells it."""


class Device(Body, frozen=True, kw_only=True):
    """A device in a list: these fields, in this order (rest-29)."""

    id: str
    friendly_name: str
    model_number: str
    labels: list[str]
    boot_mode: Literal["dfu"] | None
    connectivity: Connectivity
    firmware_version: str
    hardware_version: str
    imei: str | None
    status: int | None


class DevicePage(Body, frozen=True, kw_only=True):
    """Devices, and the token for the next page; None on the last one (rest-16)."""

    items: list[Device]
    next_token: str | None


class Login(Ask, frozen=True, kw_only=True):
    """Who wants in (auth-1)."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Login(username={self.username!r}, password=…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("username", self.username)]


class LoggedIn(Body, frozen=True, kw_only=True):
    """The token to come with (auth-2)."""

    status: Literal["SUCCESS"] = "SUCCESS"
    auth_token: str
    session_id: None = None

    def __repr__(self) -> str:
        return "LoggedIn(auth_token=…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return []


class FriendlyName(Ask, frozen=True, kw_only=True):
    """The new name of a device."""

    name: str


class NewLabel(Ask, frozen=True, kw_only=True):
    """A label for the list of labels, and devices to put it on (rest-58, rest-60)."""

    label: str
    device_ids: tuple[str, ...] = ()


class NewGateway(Ask, frozen=True, kw_only=True):
    """A gateway to claim (rest-69)."""

    mac: str
    friendly_name: str | None = None


class BrokerPlace(Body, frozen=True, kw_only=True):
    """Where a gateway is to connect."""

    host: Annotated[str, Meta(min_length=1)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    tls: bool


class GatewayClaim(Body, frozen=True, kw_only=True):
    """A claimed gateway with its credentials, which are shown this once (rest-70, rest-71)."""

    mac: str
    device_id: str
    username: str
    password: str
    broker: BrokerPlace

    def __repr__(self) -> str:
        return f"GatewayClaim(mac={self.mac!r}, password=…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("mac", self.mac)]


class Problem(Body, frozen=True, kw_only=True):
    """As much of an RFC 9457 problem as a person reads."""

    title: str | None = None
    detail: str | None = None


BodyT = TypeVar("BodyT", bound=Ask | Body)


def decode(kind: type[BodyT], data: bytes) -> BodyT:
    """Read the body of a request or an answer, or raise a `WireError` that names the field."""
    text = payload.utf8(data)
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as exc:
        raise payload.rejection(exc) from None
    except msgspec.DecodeError as exc:
        raise MalformedPayload("body", f"cannot be read as JSON: {exc}") from exc
    except RecursionError:
        raise MalformedPayload("body", "is nested too deeply") from None


def parse_max_results(text: str) -> int:
    """Read `MaxResults`: how many items a page may hold (rest-23)."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or not MIN_RESULTS <= int(text) <= MAX_RESULTS:
        raise MalformedPayload("MaxResults", f"is not a number from {MIN_RESULTS} to {MAX_RESULTS}")
    return int(text)


def parse_retry_after(text: str) -> int | None:
    """Read how many seconds to wait; None: it says something else, such as a date."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


_BEARER = re.compile(r"bearer ([A-Za-z0-9\-._~+/]+=*)", re.IGNORECASE | re.ASCII)


def parse_bearer(header: str) -> str | None:
    """Take the token out of an `Authorization` header; None: there is none (auth-5)."""
    found = _BEARER.fullmatch(header)
    return found[1] if found else None


def parse_friendly_name(text: str, field: str = "name") -> str:
    """Read the name of a device: 1 to 128 characters after trimming (rest-44)."""
    return _line(text, field, most=128)


def parse_label(text: str, field: str = "label") -> str:
    """Read a label: 1 to 64 characters after trimming, none of them a control, in NFC (rest-66, rest-67)."""
    label = _line(unicodedata.normalize("NFC", text), field, most=64)
    if label in {".", ".."}:
        raise MalformedText(field, f"{label!r} means something else in a path")
    return label


def _line(text: str, field: str, *, most: int) -> str:
    line = text.strip()
    if not 1 <= len(line) <= most:
        raise MalformedText(field, f"has {len(line)} characters; 1 to {most} are allowed")
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in line):
        raise MalformedText(field, "has control characters")
    return line
