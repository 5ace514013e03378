"""Device registry, its REST routes, and the device list with filters and summary."""
