"""`Mesh`: reports of gateways and requests to them over any MQTT broker, without a Meshfleet service."""
