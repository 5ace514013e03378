"""Health, readiness and metrics for operators."""
