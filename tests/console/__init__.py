"""The console's sources, what is built of them, and how that is packed. Browsers are in `tests.browser`."""
