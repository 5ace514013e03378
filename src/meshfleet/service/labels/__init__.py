"""Labels: words that people put on devices."""
