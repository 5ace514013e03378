"""Requests to gateways and, through them, to devices."""
