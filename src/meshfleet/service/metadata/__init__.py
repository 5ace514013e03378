"""Metadata of devices, read from devices that never reported it."""
