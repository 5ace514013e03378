"""Live events: changes and reports, sent to subscribers over WebSockets and server-sent events."""
