"""mqtt.js, a client of another project, for tests of a broker.

lines           commands to and events of the program in tests/node
driver          MqttJs, which starts it and waits for it
"""

from tests.mqttjs.driver import Failure, MqttJs
from tests.mqttjs.lines import Message, Options, Will

__all__ = ["Failure", "Message", "MqttJs", "Options", "Will"]
