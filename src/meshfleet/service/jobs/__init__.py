"""Firmware update jobs: planning, execution and views."""
