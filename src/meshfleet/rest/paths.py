"""Paths of the REST API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from meshfleet.errors.protocol import MalformedText
from meshfleet.rest.alarm_rules import ALARM_RULES_PATH
from meshfleet.rest.alarms import ALARMS_PATH
from meshfleet.rest.channels import CHANNELS_PATH
from meshfleet.rest.firmware import FIRMWARE_PATH
from meshfleet.rest.jobs import JOBS_PATH
from meshfleet.rest.requests import REQUESTS_PATH
from meshfleet.rest.silences import SILENCES_PATH

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
GATEWAY_BATCH_PATH: Final = f"{GATEWAYS_PATH}/batch"
SITES_PATH: Final = "/api/v1/sites"
EXPORT_PATH: Final = "/api/v1/samples/export"
REJECTS_PATH: Final = "/api/v1/rejects"
HEALTH_PATH: Final = "/healthz"
READINESS_PATH: Final = "/readyz"
METRICS_PATH: Final = "/metrics"
RELOAD_PATH: Final = "/api/v1/reload"
STORAGE_PATH: Final = "/api/v1/storage"
OPENAPI_PATH: Final = "/api/v1/openapi.json"
ASYNCAPI_PATH: Final = "/api/v1/asyncapi.json"


def device_path(device: DeviceId) -> str:
    """Return the REST path at which a device is read or deleted (rest-39)."""
    return f"{DEVICES_PATH}/{device}"


def friendly_name_path(device: DeviceId) -> str:
    """Return the REST path at which a device is renamed (rest-43)."""
    return f"{DEVICES_PATH}/{device}/friendly-name"


def device_label_path(device: DeviceId, label: str) -> str:
    """Return the REST path at which a label, percent-encoded, is attached to a device or detached."""
    return f"{DEVICES_PATH}/{device}/labels/{quote(label, safe='')}"


def connectivity_path(device: DeviceId) -> str:
    """Return the REST path of the connectivity history of a device (rest-189)."""
    return f"{DEVICES_PATH}/{device}/connectivity"


def holes_path(device: DeviceId) -> str:
    """Return the REST path of the gaps in the samples of a device (rest-190)."""
    return f"{DEVICES_PATH}/{device}/holes"


def samples_path(device: DeviceId) -> str:
    """Return the REST path of the samples of a device (rest-80)."""
    return f"{DEVICES_PATH}/{device}/samples"


def series_path(device: DeviceId) -> str:
    """Return the REST path of the time series of a device (rest-85)."""
    return f"{DEVICES_PATH}/{device}/series"


def links_path(device: DeviceId) -> str:
    """Return the REST path of the signal strength of a device at each parent (rest-87)."""
    return f"{DEVICES_PATH}/{device}/links"


def parents_path(device: DeviceId) -> str:
    """Return the REST path of the parent changes of a device (rest-242)."""
    return f"{DEVICES_PATH}/{device}/parents"


def device_way_path(device: DeviceId) -> str:
    """Return the REST path of the hops from a device to its gateway (rest-244)."""
    return f"{DEVICES_PATH}/{device}/path"


def device_requests_path(device: DeviceId) -> str:
    """Return the REST path at which requests to a device are sent and listed (rest-97)."""
    return f"{DEVICES_PATH}/{device}/requests"


def updates_path(device: DeviceId) -> str:
    """Return the REST path of the executions of a device in unfinished jobs (rest-211)."""
    return f"{DEVICES_PATH}/{device}/updates"


def alarm_path(alarm: str) -> str:
    """Return the REST path of an alarm (rest-269)."""
    return f"{ALARMS_PATH}/{_quote_segment(alarm)}"


def alarm_rule_path(rule: str) -> str:
    """Return the REST path of a rule of alarms (rest-284)."""
    return f"{ALARM_RULES_PATH}/{_quote_segment(rule)}"


def silence_path(silence: str) -> str:
    """Return the REST path of a silence (rest-296)."""
    return f"{SILENCES_PATH}/{_quote_segment(silence)}"


def channel_path(channel: str) -> str:
    """Return the REST path of a channel (rest-276)."""
    return f"{CHANNELS_PATH}/{_quote_segment(channel)}"


def deliveries_path(channel: str) -> str:
    """Return the REST path of the messages of a channel (rest-279)."""
    return f"{channel_path(channel)}/deliveries"


def delivery_retry_path(channel: str, delivery: str) -> str:
    """Return the REST path at which a message is tried again (rest-279)."""
    return f"{deliveries_path(channel)}/{_quote_segment(delivery)}/retry"


def diagnosis_path(device: DeviceId) -> str:
    """Return the REST path of the diagnosis of a device (rest-275)."""
    return f"{DEVICES_PATH}/{device}/diagnosis"


def place_path(device: DeviceId) -> str:
    """Return the REST path of the place of a device (rest-90)."""
    return f"{DEVICES_PATH}/{device}/place"


def position_path(device: DeviceId) -> str:
    """Return the REST path of the position of a device (rest-91)."""
    return f"{DEVICES_PATH}/{device}/position"


def past_positions_path(device: DeviceId) -> str:
    """Return the REST path of the positions of a device over time (rest-258)."""
    return f"{DEVICES_PATH}/{device}/positions"


def site_path(site: str) -> str:
    """Return the REST path of a site (rest-248)."""
    return f"{SITES_PATH}/{_quote_segment(site)}"


def plan_path(site: str, floor: int) -> str:
    """Return the REST path of the picture of a floor (rest-251)."""
    return f"{site_path(site)}/floors/{floor}/plan"


def places_path(site: str) -> str:
    """Return the REST path of the places of devices on a site (rest-254)."""
    return f"{site_path(site)}/places"


def zones_path(site: str) -> str:
    """Return the REST path of the zones of a site (rest-255)."""
    return f"{site_path(site)}/zones"


def zone_path(site: str, zone: str) -> str:
    """Return the REST path of a zone (rest-255)."""
    return f"{zones_path(site)}/{_quote_segment(zone)}"


def visits_path(site: str, zone: str) -> str:
    """Return the REST path of the visits of devices to a zone (rest-264)."""
    return f"{zone_path(site, zone)}/visits"


def site_positions_path(site: str) -> str:
    """Return the REST path of the positions of all devices on a site (rest-259)."""
    return f"{site_path(site)}/positions"


def nearest_path(site: str) -> str:
    """Return the REST path of the devices nearest to a point on a site (rest-260)."""
    return f"{site_path(site)}/nearest"


def coverage_path(site: str, floor: int) -> str:
    """Return the REST path of the expected coverage of a floor (rest-266)."""
    return f"{site_path(site)}/floors/{floor}/coverage"


def survey_path(site: str) -> str:
    """Return the REST path of the survey points of a site (rest-261)."""
    return f"{site_path(site)}/survey"


def survey_point_path(site: str, point: str) -> str:
    """Return the REST path of a survey point (rest-261)."""
    return f"{survey_path(site)}/{_quote_segment(point)}"


def survey_export_path(site: str) -> str:
    """Return the REST path of all survey points of a site with their readings (rest-267)."""
    return f"{survey_path(site)}/export"


def survey_import_path(site: str) -> str:
    """Return the REST path at which many survey points are added at once (rest-268)."""
    return f"{survey_path(site)}/import"


def label_path(label: str) -> str:
    """Return the REST path at which a label, percent-encoded, is deleted from the service."""
    return f"{LABELS_PATH}/{quote(label, safe='')}"


def gateway_path(gateway: Mac) -> str:
    """Return the REST path at which a gateway is read or released (rest-74)."""
    return f"{GATEWAYS_PATH}/{gateway}"


def credentials_path(gateway: Mac) -> str:
    """Return the REST path at which the MQTT password of a gateway is replaced (rest-73)."""
    return f"{GATEWAYS_PATH}/{gateway}/credentials"


def topology_path(gateway: Mac) -> str:
    """Return the REST path of the mesh of a gateway (rest-89)."""
    return f"{GATEWAYS_PATH}/{gateway}/topology"


def user_path(username: str) -> str:
    """Return the REST path at which a user account is read, changed or deleted (auth-23)."""
    return f"{USERS_PATH}/{_quote_segment(username)}"


def api_key_path(key: str) -> str:
    """Return the REST path at which the API key with this id is revoked."""
    return f"{API_KEYS_PATH}/{_quote_segment(key)}"


def request_path(request: str) -> str:
    """Return the REST path of the state of a request to a device (rest-104)."""
    return f"{REQUESTS_PATH}/{_quote_segment(request)}"


def firmware_path(firmware: str) -> str:
    """Return the REST path at which a firmware record is read or deleted (rest-110, rest-112)."""
    return f"{FIRMWARE_PATH}/{_quote_segment(firmware)}"


def image_path(firmware: str) -> str:
    """Return the REST path at which a firmware image is downloaded (rest-110)."""
    return f"{firmware_path(firmware)}/image"


def release_path(firmware: str) -> str:
    """Return the REST path at which firmware is released for jobs (rest-111)."""
    return f"{firmware_path(firmware)}/release"


def withdraw_path(firmware: str) -> str:
    """Return the REST path at which released firmware is withdrawn (rest-111)."""
    return f"{firmware_path(firmware)}/withdraw"


def job_path(job: str) -> str:
    """Return the REST path of a job (rest-136)."""
    return f"{JOBS_PATH}/{_quote_segment(job)}"


def job_action_path(job: str, action: str) -> str:
    """Return the REST path of a job action: `apply`, `pause`, `resume`, `cancel` or `retry` (rest-137)."""
    return f"{job_path(job)}/{action}"


def executions_path(job: str) -> str:
    """Return the REST path of the executions of a job (rest-140)."""
    return f"{job_path(job)}/executions"


def execution_path(job: str, device: DeviceId) -> str:
    """Return the REST path of the execution of one device in a job (rest-141)."""
    return f"{executions_path(job)}/{device}"


def _quote_segment(text: str) -> str:
    """Percent-encode a string as a path segment. Raise `MalformedText` if it is empty, `.` or `..`."""
    if text in {"", ".", ".."}:
        raise MalformedText("path", f"{text!r} cannot be part of a path")
    return quote(text, safe="")
