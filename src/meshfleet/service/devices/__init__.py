"""Devices: the registry, and the list of it."""
