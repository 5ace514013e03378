"""Firmware records and firmware images: upload, checks, release, and download by gateways."""
