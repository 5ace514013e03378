"""Audit log of all changes by users, API keys and gateways, and its REST route."""
