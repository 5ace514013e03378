"""The service: a REST interface and, in time, messaging, over one database."""
