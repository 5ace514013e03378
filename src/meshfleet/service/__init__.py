"""The service: a REST interface, messaging, and jobs, over one database."""
