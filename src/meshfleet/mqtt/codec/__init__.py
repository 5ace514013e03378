"""MQTT 3.1.1 without I/O: bytes in, packets out, and back. For both ends of a connection.

packets         what travels: one struct for each type of packet
names           topic names and topic filters: which are legal, and their bytes
encoder         packets to bytes
decoder         the body of one packet to a struct
parser          a stream of bytes, cut anywhere, to packets

Numbers in brackets, such as [MQTT-3.3.1-2], are the normative statements of the OASIS standard.
"""
