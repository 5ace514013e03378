"""MQTT 3.1.1 packets without I/O, for clients and brokers: bytes to packets and back.

Numbers in brackets, such as [MQTT-3.3.1-2], are the normative statements of the OASIS standard.
"""
