"""Ingest: stores published reports, each exactly once.

`IngestPipeline.commit` parses a batch, writes it in one transaction and then passes it to subscribers. The
current state of devices is collected in memory and written every few seconds.
"""
