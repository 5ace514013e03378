"""Reports and requests through an MQTT broker that runs elsewhere."""
