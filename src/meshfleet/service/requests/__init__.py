"""Requests to gateways, and to devices through them."""
