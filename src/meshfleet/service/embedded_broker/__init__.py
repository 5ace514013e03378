"""Who may connect to the embedded broker, what becomes of changes, and where it listens."""
