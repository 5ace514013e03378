"""MQTT 3.1.1 client that reconnects by itself and lets the application acknowledge received messages.

`MqttClient` outlives connections; a `ClientConnection` is one connection from CONNECT to its end, and the
`Reconnector` opens the next one. This package knows nothing of gateways and devices. docs/mqtt-client.md
describes how to use it.
"""

from meshfleet.event_loop import run_program
from meshfleet.mqtt.client.address import BrokerAddress
from meshfleet.mqtt.client.client import MqttClient
from meshfleet.mqtt.client.inbox import MessageBatch
from meshfleet.mqtt.client.options import ExponentialBackoff, MqttOptions
from meshfleet.mqtt.codec.packets import OversizedPublish, Publish, Will

__all__ = [
    "BrokerAddress",
    "ExponentialBackoff",
    "MessageBatch",
    "MqttClient",
    "MqttOptions",
    "OversizedPublish",
    "Publish",
    "Will",
    "run_program",
]
