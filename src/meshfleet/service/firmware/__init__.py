"""Firmware records and images: upload, checks, release, and download by gateways."""
