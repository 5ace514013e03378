"""Claimed gateways: MQTT credentials, API versions and report rates."""
