"""Presence: the connection state of gateways and devices.

A gateway is connected while its MQTT connection is open. A device is connected if a report of it was received
within three of its usual intervals between heartbeats, through a connected gateway (rest-51).
"""
