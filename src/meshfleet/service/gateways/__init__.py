"""Gateways: which ones are ours, and their credentials."""
