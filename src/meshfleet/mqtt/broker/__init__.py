"""The embedded MQTT 3.1.1 broker, in the process of the service.

broker          the whole, as the service sees it
lobby           clients come and go: who is let in, and with which session
desk            what becomes of what they send
connection      one client's connection: packets, keep-alive, pace
sessions        all sessions, and whose they are
session         what one client subscribed to and is owed
post            where messages go
tree            wildcards
letters         a message on its way to its subscribers
retained        the last word on a topic
requests        how long a request may wait
journal         what is promised is written down first: rounds, commits, answers
changes, store  what is written, and how
access          who may publish and read what
door            whom the broker asks who a client is
crowd           how many connections
stock           how much all sessions hold together
websocket       MQTT inside a WebSocket

Its one great promise: the PUBACK of a report means that the database has committed it.
See docs/guides/brokers.md for how to use it, and docs/mqtt-conformance.md for the standard.
"""

from meshfleet.mqtt.broker.auth import Account, AccountKind, Authenticator, NotAdmitted, TopicPermissions
from meshfleet.mqtt.broker.broker import Broker
from meshfleet.mqtt.broker.group_commit import ReportBatch, ReportConsumer
from meshfleet.mqtt.broker.store import StoredState, check_ownership, load_stored_state, take_ownership

__all__ = [
    "Account",
    "AccountKind",
    "Authenticator",
    "Broker",
    "NotAdmitted",
    "ReportBatch",
    "ReportConsumer",
    "StoredState",
    "TopicPermissions",
    "check_ownership",
    "load_stored_state",
    "take_ownership",
]
