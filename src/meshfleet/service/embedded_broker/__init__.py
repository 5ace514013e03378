"""Connects the embedded MQTT broker to the service: authentication, revocation, audit, and listeners."""
