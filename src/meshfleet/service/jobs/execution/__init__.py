"""Runs jobs: loads executions, decides, stores transitions and requests, and only then sends requests."""
