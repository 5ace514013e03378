"""`Fleet`: client of a Meshfleet service over REST.

The classes of `fleet.devices`, `fleet.jobs` and so on are in modules of this package. The classes send
requests with `http_caller`, which authenticates (`session`), retries (`retries`) and turns problem responses
into errors (`problems`).
"""
