"""Tests of the REST interface over HTTP, on a running service."""
