"""Size of the data on disk, its growth, and the forecast when the disk is full."""
