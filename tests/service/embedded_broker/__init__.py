"""The accounts of the service at the door of its broker."""
