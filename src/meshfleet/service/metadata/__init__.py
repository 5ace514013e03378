"""Reads metadata, such as model and versions, from devices that never reported their metadata."""
