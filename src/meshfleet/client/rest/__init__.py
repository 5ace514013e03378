"""`Fleet`: client of a Meshfleet service over REST.

The classes of `fleet.devices`, `fleet.jobs` and so on are in modules of this package. They send requests
with `http_caller`, which authenticates (`session`), retries (`retries`) and turns error responses into errors
(`problems`).
"""
