"""Shows devices in Home Assistant: publishes discovery, state and availability on the broker that it uses."""
