"""The connection to an MQTT 3.1.1 broker: it comes back by itself, and acknowledges when you say so.

link            the lasting thing: publish, subscribe, receive; survives connections
connection      one connection, from CONNECT to its end
address         where a broker is, and who we are to it
tls             whom to trust
websocket       MQTT inside a WebSocket
frames          what it shares with a broker's side
inbox           messages as batches, acknowledged as batches
keeper          makes a connection, and another when one is lost
dial            from an address to a connection, or the reason why not
options         what can be set
flight          what was published and is not acknowledged
pulse           keep-alive
pace            short rests between reads under load
delays          how long to wait before the next try
bell            wakes those who wait for a change
words           what went wrong, for a person
loop            runs a program, on uvloop where it is installed

Nothing here knows of gateways or devices. See docs/link.md for how to use it.
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
