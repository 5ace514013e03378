"""Schema migrations, one module each. A released migration never changes what it does."""
