"""Presence: the connection state of gateways and devices.

A gateway is connected while its MQTT connection is. A device is connected if a report of it was received
within three of its usual intervals, through a connected gateway (rest-51).
"""
