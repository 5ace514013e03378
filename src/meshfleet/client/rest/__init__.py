"""`Fleet`: a Meshfleet service over REST.

Each attribute of `Fleet`, such as `fleet.devices`, has a module of its own. They all send through
`http_caller`, which authenticates (`session`), retries (`retries`) and turns problem responses into errors
(`problems`).
"""
