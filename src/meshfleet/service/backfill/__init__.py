"""Acknowledges samples, and detects missing samples.

Committed samples are acknowledged to their devices. A gap in the sequence numbers means that samples are
missing; the ack of the next sample then requests a backfill: the device sends its unacknowledged samples
again. Gaps that are not filled in time are recorded as lost.
"""
