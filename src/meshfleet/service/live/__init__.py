"""Live events: what happens is told to whoever listens."""
