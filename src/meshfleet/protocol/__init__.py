"""Codec for the MQTT messages between gateways and the service, without I/O, clock and logging.

The topic of a message (`topics`) determines the type of its payload (`reports`, `requests`, `responses`).
The catalogue (`identifiers`) converts raw values to JSON and back. `api_versions` lists the interface version
that introduced each field and operation.
"""
