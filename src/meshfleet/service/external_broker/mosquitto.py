"""Builds the configuration files for mosquitto as a replacement of the embedded broker.

mosquitto reads three files: passwords, access rules, and settings to include in mosquitto.conf. This module
builds the contents of the files; the caller writes the files.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from meshfleet.errors import Fault
from meshfleet.errors.startup import WrongSettings
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.gateways.password_hash import hash_mosquitto_password
from meshfleet.service.secret_store import load_or_create_secret
from meshfleet.settings.model import HomeAssistantSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.protocol.ids import Mac

_HOME_ASSISTANT: Final = HomeAssistantSettings()

SERVICE_USER: Final = "meshfleet"
"""MQTT user name of the service at mosquitto; gateways use their MACs as user names."""


def load_service_password(connection: Connection) -> str:
    """Return the MQTT password of the service at mosquitto; create the password on first use."""
    return (
        base64.urlsafe_b64encode(load_or_create_secret(connection, "mosquitto-password")).decode().rstrip("=")
    )


def build_password_file(password: str, gateways: Mapping[Mac, str]) -> str:
    """Return the content of mosquitto's password file.

    `password` is the password of the service. `gateways` maps MACs to stored password hashes.
    """
    lines = [
        f"{SERVICE_USER}:{hash_mosquitto_password(password)}",
        *(f"{mac}:{hashed}" for mac, hashed in gateways.items()),
    ]
    return "\n".join([*lines, ""])


def build_acl_file(prefix: str, homeassistant: HomeAssistantSettings = _HOME_ASSISTANT) -> str:
    """Return the content of mosquitto's file of access rules (broker-7, broker-8, broker-20).

    The user name of a gateway is its MAC. Raise `WrongSettings` if mosquitto would misread the topic prefix.
    """
    if "%u" in prefix or "%c" in prefix or prefix.startswith(" "):
        reason = (
            "must not contain %u or %c or start with a space:"
            " mosquitto's access rules give these a special meaning"
        )
        raise WrongSettings([Fault("topic-prefix", reason)])
    topics = TopicCodec(prefix)
    root = topics.broadcast_filter().removesuffix("mt/gateways/#")
    return f"""\
# The service receives reports and responses of gateways, sends them requests, and publishes alarms.
user {SERVICE_USER}
topic read {topics.report_filter()}
topic read {topics.response_filter()}
topic write {root}mt/gateway/+/request/#
topic write {root}mt/gateways/request/#
topic readwrite meshtech/diagnostics/#
topic write {root}meshfleet/alarms/+

# The service shows devices in Home Assistant, if it uses this broker.
topic readwrite {homeassistant.topic}/#
topic readwrite {homeassistant.discovery_prefix}/device/+/config
topic readwrite {homeassistant.discovery_prefix}/+/+/+/config
topic read {homeassistant.discovery_prefix}/status
topic read homeassistant/status

# A gateway may use its own topics and read the broadcast topics. mosquitto logs a warning about the
# broadcast line but applies it.
pattern readwrite {root}mt/gateway/%u/#
pattern read {topics.broadcast_filter()}
pattern readwrite meshtech/diagnostics/%u/#
"""


def build_config_file(*, passwords: Path, acl: Path) -> str:
    """Return the settings to include in mosquitto.conf, with comments that explain them."""
    return f"""\
# Clients need a password and may use only their own topics.
allow_anonymous false
password_file {passwords}
acl_file {acl}

# Reports that the service has not acknowledged survive a restart of mosquitto. Between two saves they are
# only in memory: if mosquitto is killed or loses power, those since the last save are lost.
persistence true
autosave_interval 10

# The service acknowledges hundreds of reports at once, when they are committed. With the default of 20 in
# flight it would wait for the network most of the time.
max_inflight_messages 2000

# While the service is disconnected no report is dropped. mosquitto keeps them in memory: provide enough.
max_queued_messages 0

# Acknowledgements are small: send them at once.
set_tcp_nodelay true

# Any client with a password can use the client id of another client and disconnect it. This setting prevents
# that, but then a gateway cannot open its diagnostics connection in addition to its main one.
# use_username_as_clientid true
"""
