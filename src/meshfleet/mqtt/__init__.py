"""The MQTT 3.1.1 codec, client and broker, and the code that client and broker share."""
