"""Paths of the REST API."""

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
OWN_PASSWORD_PATH: Final = "/api/v1/auth/password"  # noqa: S105 # a path, not a password
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
RELOAD_PATH: Final = "/api/v1/reload"
OPENAPI_PATH: Final = "/api/v1/openapi.json"
ASYNCAPI_PATH: Final = "/api/v1/asyncapi.json"


def device_path(device: DeviceId) -> str:
    """Return the path to get and delete a device (rest-39)."""
    return f"{DEVICES_PATH}/{device}"


def friendly_name_path(device: DeviceId) -> str:
    """Return the path to rename a device (rest-43)."""
    return f"{DEVICES_PATH}/{device}/friendly-name"


def device_label_path(device: DeviceId, label: str) -> str:
    """Return the path to attach a label to a device and to remove it. Any label is allowed."""
    return f"{DEVICES_PATH}/{device}/labels/{quote(label, safe='')}"


def connectivity_path(device: DeviceId) -> str:
    """Return the path of the connectivity history of a device (rest-189)."""
    return f"{DEVICES_PATH}/{device}/connectivity"


def holes_path(device: DeviceId) -> str:
    """Return the path of the gaps in the samples of a device (rest-190)."""
    return f"{DEVICES_PATH}/{device}/holes"


def samples_path(device: DeviceId) -> str:
    """Return the path of the samples of a device (rest-80)."""
    return f"{DEVICES_PATH}/{device}/samples"


def series_path(device: DeviceId) -> str:
    """Return the path of the time series of a device (rest-85)."""
    return f"{DEVICES_PATH}/{device}/series"


def links_path(device: DeviceId) -> str:
    """Return the path of the links of a device to its parents (rest-87)."""
    return f"{DEVICES_PATH}/{device}/links"


def device_requests_path(device: DeviceId) -> str:
    """Return the path to send and list requests to a device (rest-97)."""
    return f"{DEVICES_PATH}/{device}/requests"


def updates_path(device: DeviceId) -> str:
    """Return the path of the executions of a device in unfinished jobs (rest-211)."""
    return f"{DEVICES_PATH}/{device}/updates"


def label_path(label: str) -> str:
    """Return the path to delete a label. Any label is allowed."""
    return f"{LABELS_PATH}/{quote(label, safe='')}"


def gateway_path(gateway: Mac) -> str:
    """Return the path to get and release a gateway (rest-74)."""
    return f"{GATEWAYS_PATH}/{gateway}"


def credentials_path(gateway: Mac) -> str:
    """Return the path to replace the MQTT password of a gateway (rest-73)."""
    return f"{GATEWAYS_PATH}/{gateway}/credentials"


def user_path(username: str) -> str:
    """Return the path to get, change and delete a user (auth-23)."""
    return f"{USERS_PATH}/{_quote_segment(username)}"


def api_key_path(key: str) -> str:
    """Return the path to revoke an API key, named by its id."""
    return f"{API_KEYS_PATH}/{_quote_segment(key)}"


def request_path(request: str) -> str:
    """Return the path of the state of a request (rest-104)."""
    return f"{REQUESTS_PATH}/{_quote_segment(request)}"


def firmware_path(firmware: str) -> str:
    """Return the path to get and delete a firmware record (rest-110, rest-112)."""
    return f"{FIRMWARE_PATH}/{_quote_segment(firmware)}"


def image_path(firmware: str) -> str:
    """Return the path to download the image of a firmware record (rest-110)."""
    return f"{firmware_path(firmware)}/image"


def release_path(firmware: str) -> str:
    """Return the path to release firmware (rest-111)."""
    return f"{firmware_path(firmware)}/release"


def withdraw_path(firmware: str) -> str:
    """Return the path to withdraw firmware (rest-111)."""
    return f"{firmware_path(firmware)}/withdraw"


def job_path(job: str) -> str:
    """Return the path of a job (rest-136)."""
    return f"{JOBS_PATH}/{_quote_segment(job)}"


def job_action_path(job: str, action: str) -> str:
    """Return the path of a command: `apply`, `pause`, `resume`, `cancel` or `retry` (rest-137)."""
    return f"{job_path(job)}/{action}"


def executions_path(job: str) -> str:
    """Return the path of the executions of a job (rest-140)."""
    return f"{job_path(job)}/executions"


def execution_path(job: str, device: DeviceId) -> str:
    """Return the path of one execution with its transitions (rest-141)."""
    return f"{executions_path(job)}/{device}"


def _quote_segment(text: str) -> str:
    """Percent-encode a text as a path segment. Raise `MalformedText` for one that would name another path.

    Labels are checked before (`parse_label`).
    """
    if text in {"", ".", ".."}:
        raise MalformedText("path", f"{text!r} cannot be part of a path")
    return quote(text, safe="")
