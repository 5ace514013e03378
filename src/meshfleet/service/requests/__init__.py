"""Requests to gateways and, through gateways, to devices."""
