"""Runs jobs: loads executions, decides their next step, stores the decision, and then sends requests."""
