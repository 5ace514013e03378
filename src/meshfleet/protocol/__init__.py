"""Codec for the messages between gateways, devices and the service. Pure: no I/O, no clock, no logging.

A topic (`topics`) determines the struct of its payload: `reports`, `requests` or `responses`. `identifiers`
is the catalogue that converts raw values to JSON and back; `api_versions` lists the interface version that
introduced each field and operation.
"""
