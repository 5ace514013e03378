"""Connects emulated gateways to a broker. No other part of the emulator does I/O or reads the clock."""
