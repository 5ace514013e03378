"""The catalogue of identifiers and products for clients."""
