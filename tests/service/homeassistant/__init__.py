"""The integration with Home Assistant."""
