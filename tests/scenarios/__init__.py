"""End-to-end tests with the service as a separate program."""
