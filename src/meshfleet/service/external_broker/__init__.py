"""Reports and requests through an external MQTT broker, and the configuration of mosquitto as such."""
