"""The REST interface: its bodies, its paths, and the rules for what people type into it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from meshfleet.wire.rest.accounts import (
    ApiKey,
    ApiKeyPage,
    AuditPage,
    AuditRow,
    IssuedApiKey,
    LoggedIn,
    Login,
    Me,
    NewApiKey,
    NewPassword,
    NewUser,
    Role,
    User,
    UserChange,
    UserPage,
)
from meshfleet.wire.rest.bodies import (
    Ask,
    Body,
    BodyT,
    decode,
)
from meshfleet.wire.rest.devices import (
    Connectivity,
    Device,
    DeviceDetail,
    DevicePage,
    FriendlyName,
    Live,
    Place,
    Share,
    Summary,
)
from meshfleet.wire.rest.gateways import (
    BrokerPlace,
    Gateway,
    GatewayClaim,
    GatewayPage,
    NewGateway,
)
from meshfleet.wire.rest.labels import (
    Label,
    LabelPage,
    NewLabel,
)
from meshfleet.wire.rest.operations import Health
from meshfleet.wire.rest.paths import (
    DEVICES,
    GATEWAYS,
    LABELS,
    LOGIN,
    credentials_path,
    device_label_path,
    friendly_name_path,
)
from meshfleet.wire.rest.problems import (
    FieldProblem,
    Problem,
)
from meshfleet.wire.rest.texts import (
    DEFAULT_RESULTS,
    MAX_PASSWORD,
    MAX_RESULTS,
    MIN_PASSWORD,
    MIN_RESULTS,
    parse_bearer,
    parse_friendly_name,
    parse_key_name,
    parse_label,
    parse_max_results,
    parse_name_part,
    parse_password,
    parse_retry_after,
    parse_username,
)

__all__ = [
    "DEFAULT_RESULTS",
    "DEVICES",
    "GATEWAYS",
    "LABELS",
    "LOGIN",
    "MAX_PASSWORD",
    "MAX_RESULTS",
    "MIN_PASSWORD",
    "MIN_RESULTS",
    "TOKEN_LIFETIME",
    "ApiKey",
    "ApiKeyPage",
    "Ask",
    "AuditPage",
    "AuditRow",
    "Body",
    "BodyT",
    "BrokerPlace",
    "Connectivity",
    "Device",
    "DeviceDetail",
    "DevicePage",
    "FieldProblem",
    "FriendlyName",
    "Gateway",
    "GatewayClaim",
    "GatewayPage",
    "Health",
    "IssuedApiKey",
    "Label",
    "LabelPage",
    "Live",
    "LoggedIn",
    "Login",
    "Me",
    "NewApiKey",
    "NewGateway",
    "NewLabel",
    "NewPassword",
    "NewUser",
    "Place",
    "Problem",
    "Role",
    "Share",
    "Summary",
    "User",
    "UserChange",
    "UserPage",
    "credentials_path",
    "decode",
    "device_label_path",
    "friendly_name_path",
    "parse_bearer",
    "parse_friendly_name",
    "parse_key_name",
    "parse_label",
    "parse_max_results",
    "parse_name_part",
    "parse_password",
    "parse_retry_after",
    "parse_username",
]

TOKEN_LIFETIME: Final = timedelta(minutes=30)
