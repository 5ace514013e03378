"""`Mesh` receives reports of gateways and sends requests to them over MQTT, without a Meshfleet service."""
