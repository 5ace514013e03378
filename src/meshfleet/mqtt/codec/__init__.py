"""Encoder and decoder of MQTT 3.1.1 packets, without I/O, for clients and brokers.

Numbers in brackets, such as [MQTT-3.3.1-2], refer to normative statements of the OASIS standard.
"""
