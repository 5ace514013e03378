"""Sites: floors with their plans, places of devices, and zones."""
