"""Loads jobs and executions in the form that the REST API returns."""
