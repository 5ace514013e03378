"""How jobs and executions are shown."""
