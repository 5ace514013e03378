"""Connects emulated gateways to an MQTT broker; the only part of the emulator with I/O and a real clock."""
