"""Tests of the embedded broker with the accounts of the service."""
