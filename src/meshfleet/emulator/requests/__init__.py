"""Requests to one gateway: through the mesh to their target and back.

answering       takes requests in, checks them, carries them through the mesh
exchange        one request, and the one response that it gets
target          what a device checks, reads and writes
writing         what a write does; `commands` act, `throughput` tests are one of them
acknowledging   acks, and the backfill of samples that somebody misses
"""
