"""The embedded MQTT 3.1.1 broker, in the process of the service.

A `ServerConnection` parses packets. `ConnectHandler` authenticates clients and opens sessions;
`PacketHandler` handles the packets of accepted clients; `MessageRouter` finds subscribers; `GroupCommit`
commits reports and session changes in batches. The PUBACK of a report means that the database has committed
it.

docs/guides/brokers.md describes how to use the broker, docs/mqtt-conformance.md how it follows the standard.
"""

from meshfleet.mqtt.broker.auth import (
    Account,
    AccountKind,
    Authenticator,
    HomeAssistantTopics,
    NotAdmitted,
    TopicPermissions,
)
from meshfleet.mqtt.broker.broker import Broker
from meshfleet.mqtt.broker.group_commit import ReportBatch, ReportConsumer
from meshfleet.mqtt.broker.store import StoredState, check_ownership, load_stored_state, take_ownership

__all__ = [
    "Account",
    "AccountKind",
    "Authenticator",
    "Broker",
    "HomeAssistantTopics",
    "NotAdmitted",
    "ReportBatch",
    "ReportConsumer",
    "StoredState",
    "TopicPermissions",
    "check_ownership",
    "load_stored_state",
    "take_ownership",
]
