"""Ingest: stores published reports without losing one or storing one twice.

`IngestPipeline.commit` parses a batch and writes it in one transaction, then passes it to subscribers. The
current state of devices is collected in memory and written about every second.
"""
