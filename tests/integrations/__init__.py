"""Other programs that get samples from the service, or exchange messages with its broker."""
