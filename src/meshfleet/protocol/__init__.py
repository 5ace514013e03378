"""Codec for the messages between gateways, devices and the service. Pure: no I/O, no clock, no logging.

The topic of a message (`topics`) determines the type of its payload (`reports`, `requests`, `responses`).
The catalogue (`identifiers`) converts raw values to JSON and back. `api_versions` lists the interface version
that introduced each field and operation.
"""
