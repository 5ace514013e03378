"""Builds the jobs and executions that the REST API returns, from the database."""
