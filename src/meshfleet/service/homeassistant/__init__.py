"""Shows devices in Home Assistant: publishes discovery, state and availability on Home Assistant's broker."""
