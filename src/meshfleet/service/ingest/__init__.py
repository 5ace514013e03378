"""Ingest: stores published reports, each exactly once.

`IngestPipeline.commit` parses a batch of MQTT messages, writes the batch in one transaction, and then passes
it to subscribers. The current states of devices are collected in memory and written every few seconds.
"""
