"""Client of an external MQTT broker for reports and requests, and the configuration of mosquitto for it."""
