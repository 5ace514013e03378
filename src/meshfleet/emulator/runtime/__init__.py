"""Emulated gateways on a broker. Only this package of the emulator opens connections and reads the clock."""
