"""What identifiers mean and products are called, for clients."""
