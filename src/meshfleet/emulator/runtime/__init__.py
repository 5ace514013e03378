"""Emulated gateways on a broker: the only part of the emulator that opens connections and reads the clock."""
