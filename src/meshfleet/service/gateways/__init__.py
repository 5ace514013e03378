"""Claimed gateways: credentials, API versions and traffic."""
