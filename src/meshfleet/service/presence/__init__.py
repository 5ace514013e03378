"""Presence: the connection state of gateways and devices.

A gateway is connected while its MQTT connection is open. A device is connected if a connected gateway sent a
report of the device within the last three of its usual heartbeat intervals (rest-51).
"""
