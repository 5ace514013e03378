"""The embedded MQTT broker in the service: authentication, revocation, audit, listeners and metrics."""
