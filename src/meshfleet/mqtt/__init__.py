"""The MQTT 3.1.1 codec, client and broker, and what client and broker share."""
