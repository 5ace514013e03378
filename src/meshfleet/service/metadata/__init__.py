"""Reads from devices what they never reported of what they are."""
