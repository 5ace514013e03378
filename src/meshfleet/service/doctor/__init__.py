"""Checks of an installation for `meshfleet doctor`. They change nothing; the service may be running."""
