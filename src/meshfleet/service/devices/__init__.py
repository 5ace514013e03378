"""Device registry, the REST routes of devices, and the device list with filters and summary."""
