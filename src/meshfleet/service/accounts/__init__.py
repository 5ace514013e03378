"""Users and API keys: accounts, roles, login, and bearer authentication."""
