"""The paths of the REST interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from meshfleet.errors.protocol import MalformedText
from meshfleet.rest.firmware import FIRMWARE_PATH
from meshfleet.rest.jobs import JOBS_PATH
from meshfleet.rest.requests import REQUESTS_PATH

if TYPE_CHECKING:
    from meshfleet.protocol.ids import DeviceId, Mac

LOGIN_PATH: Final = "/api/v1/auth/login"
REFRESH_PATH: Final = "/api/v1/auth/refresh"
LOGOUT_PATH: Final = "/api/v1/auth/logout"
ME_PATH: Final = "/api/v1/auth/me"
OWN_PASSWORD_PATH: Final = "/api/v1/auth/password"  # noqa: S105 # where, not what
USERS_PATH: Final = "/api/v1/users"
API_KEYS_PATH: Final = "/api/v1/api-keys"
AUDIT_PATH: Final = "/api/v1/audit"
DEVICES_PATH: Final = "/api/v1/devices"
SUMMARY_PATH: Final = "/api/v1/devices/summary"
LABELS_PATH: Final = "/api/v1/labels"
GATEWAYS_PATH: Final = "/api/v1/gateways"
REJECTS_PATH: Final = "/api/v1/rejects"
HEALTH_PATH: Final = "/healthz"
READINESS_PATH: Final = "/readyz"
METRICS_PATH: Final = "/metrics"
OPENAPI_PATH: Final = "/api/v1/openapi.json"
ASYNCAPI_PATH: Final = "/api/v1/asyncapi.json"


def device_path(device: DeviceId) -> str:
    """Where a device is shown, and forgotten (rest-39)."""
    return f"{DEVICES_PATH}/{device}"


def friendly_name_path(device: DeviceId) -> str:
    """Where a device is renamed (rest-43)."""
    return f"{DEVICES_PATH}/{device}/friendly-name"


def device_label_path(device: DeviceId, label: str) -> str:
    """Where a label is put on a device and taken off; any label fits into a path."""
    return f"{DEVICES_PATH}/{device}/labels/{quote(label, safe='')}"


def connectivity_path(device: DeviceId) -> str:
    """Where one sees when a device was connected (rest-189)."""
    return f"{DEVICES_PATH}/{device}/connectivity"


def holes_path(device: DeviceId) -> str:
    """Where one sees which samples of a device are missing (rest-190)."""
    return f"{DEVICES_PATH}/{device}/holes"


def samples_path(device: DeviceId) -> str:
    """Where the samples of a device are (rest-80)."""
    return f"{DEVICES_PATH}/{device}/samples"


def series_path(device: DeviceId) -> str:
    """Where the numbers of a device over time are (rest-85)."""
    return f"{DEVICES_PATH}/{device}/series"


def links_path(device: DeviceId) -> str:
    """Where one sees which parents heard a device, and how well (rest-87)."""
    return f"{DEVICES_PATH}/{device}/links"


def device_requests_path(device: DeviceId) -> str:
    """Where requests to a device are sent and listed (rest-97)."""
    return f"{DEVICES_PATH}/{device}/requests"


def updates_path(device: DeviceId) -> str:
    """Where one sees what becomes of a device in jobs that are not over (rest-211)."""
    return f"{DEVICES_PATH}/{device}/updates"


def label_path(label: str) -> str:
    """Where a label is removed; any label fits into a path."""
    return f"{LABELS_PATH}/{quote(label, safe='')}"


def gateway_path(gateway: Mac) -> str:
    """Where a gateway is shown, and released (rest-74)."""
    return f"{GATEWAYS_PATH}/{gateway}"


def credentials_path(gateway: Mac) -> str:
    """Where a gateway gets a new password (rest-73)."""
    return f"{GATEWAYS_PATH}/{gateway}/credentials"


def user_path(username: str) -> str:
    """Where a person is shown, changed and removed (auth-23)."""
    return f"{USERS_PATH}/{_quote_segment(username)}"


def api_key_path(key: str) -> str:
    """Where an API key is revoked, by its id."""
    return f"{API_KEYS_PATH}/{_quote_segment(key)}"


def request_path(request: str) -> str:
    """Where one sees what became of a request (rest-104)."""
    return f"{REQUESTS_PATH}/{_quote_segment(request)}"


def firmware_path(firmware: str) -> str:
    """Where a firmware record is shown, and removed (rest-110, rest-112)."""
    return f"{FIRMWARE_PATH}/{_quote_segment(firmware)}"


def image_path(firmware: str) -> str:
    """Where people get the image of a firmware record (rest-110)."""
    return f"{firmware_path(firmware)}/image"


def release_path(firmware: str) -> str:
    """Where firmware is released (rest-111)."""
    return f"{firmware_path(firmware)}/release"


def withdraw_path(firmware: str) -> str:
    """Where firmware is withdrawn (rest-111)."""
    return f"{firmware_path(firmware)}/withdraw"


def job_path(job: str) -> str:
    """Where a job is shown (rest-136)."""
    return f"{JOBS_PATH}/{_quote_segment(job)}"


def job_action_path(job: str, action: str) -> str:
    """Where a job is steered: `apply`, `pause`, `resume`, `cancel` or `retry` (rest-137)."""
    return f"{job_path(job)}/{action}"


def executions_path(job: str) -> str:
    """Where the executions of a job are listed (rest-140)."""
    return f"{job_path(job)}/executions"


def execution_path(job: str, device: DeviceId) -> str:
    """Where one of them is shown with all that happened (rest-141)."""
    return f"{executions_path(job)}/{device}"


def _quote_segment(text: str) -> str:
    """Any text as a part of a path, but those that would lead to another place; no label is one of these."""
    if text in {"", ".", ".."}:
        raise MalformedText("path", f"{text!r} means something else in a path")
    return quote(text, safe="")
