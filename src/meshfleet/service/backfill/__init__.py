"""Acknowledges samples, and detects missing samples.

Committed samples are acknowledged to their devices. Gaps in the sequence numbers show that samples are
missing; then devices are requested to send unacknowledged samples again. Gaps that are not filled in time are
recorded as lost.
"""
