"""mqtt.js, a client that is not ours, for tests of a broker.

lines           what the program in tests/node is told, and what it tells
driver          MqttJs, which starts it and waits for it
"""

from tests.mqttjs.driver import Failure, MqttJs
from tests.mqttjs.lines import Message, Options, Will

__all__ = ["Failure", "Message", "MqttJs", "Options", "Will"]
