"""What mosquitto has to be told so that it can stand in the place of the embedded broker.

It reads three files: who may log in, who may do what, and settings to include. All is text here; who writes
it to a disk is somebody else.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from meshfleet.errors import Fault
from meshfleet.errors.startup import WrongSettings
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.gateways.password_hash import hash_mosquitto_password
from meshfleet.service.secret_store import load_or_create_secret

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.protocol.ids import Mac

SERVICE_USER: Final = "meshfleet"
"""Who the service is to mosquitto: no MAC, so no gateway."""


def load_service_password(connection: Connection) -> str:
    """With what the service logs in: made once, and kept."""
    return (
        base64.urlsafe_b64encode(load_or_create_secret(connection, "mosquitto-password")).decode().rstrip("=")
    )


def build_password_file(password: str, gateways: Mapping[Mac, str]) -> str:
    """Who may log in: the service with its password, and gateways by the hashes of theirs."""
    lines = [
        f"{SERVICE_USER}:{hash_mosquitto_password(password)}",
        *(f"{mac}:{hashed}" for mac, hashed in gateways.items()),
    ]
    return "\n".join([*lines, ""])


def build_acl_file(prefix: str) -> str:
    """Who may do what (broker-7, broker-8, broker-20). The user name of a gateway is its MAC."""
    if "%u" in prefix or "%c" in prefix or prefix.startswith(" "):
        why = "mosquitto's rules cannot spell it: they read %u, %c and spaces in front as something else"
        raise WrongSettings([Fault("topic-prefix", why)])
    topics = TopicCodec(prefix)
    front = topics.broadcast_filter().removesuffix("mt/gateways/#")
    return f"""\
# The service hears what gateways report and answer, and asks them.
user {SERVICE_USER}
topic read {topics.report_filter()}
topic read {topics.response_filter()}
topic write {front}mt/gateway/+/request/#
topic write {front}mt/gateways/request/#
topic readwrite meshtech/diagnostics/#

# A gateway has what is its own, and hears what is said to all; mosquitto warns of that line and obeys it.
pattern readwrite {front}mt/gateway/%u/#
pattern read {topics.broadcast_filter()}
pattern readwrite meshtech/diagnostics/%u/#
"""


def build_config_file(*, passwords: Path, acl: Path) -> str:
    """Settings to include, each with the reason why."""
    return f"""\
# Nobody without a password, and everybody only what is theirs.
allow_anonymous false
password_file {passwords}
acl_file {acl}

# What the service has not acknowledged outlives a restart of mosquitto. Between two saves it is in memory
# alone: a mosquitto that is killed, or loses its power, loses what came since the last one.
persistence true
autosave_interval 10

# The service acknowledges hundreds of reports at once, when they are committed; with the usual 20 on their
# way it would wait for the network most of the time.
max_inflight_messages 2000

# While the service is away nothing is dropped; mosquitto keeps it in memory, so see that there is enough.
max_queued_messages 0

# Acknowledgements are small: they leave at once.
set_tcp_nodelay true

# Anybody with a password can come with the client id of somebody else, and throw them out. This prevents
# it, but a gateway then cannot have its diagnostics connection beside its own.
# use_username_as_clientid true
"""
