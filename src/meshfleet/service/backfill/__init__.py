"""Acknowledgment of samples and gap detection.

Committed samples are acknowledged to their devices. Sequence numbers show which samples are missing; devices
send unacknowledged samples again, and gaps that are not filled in time are recorded as lost.
"""
