"""The REST interface, spoken to over HTTP on a running server."""
