"""Labels: texts that users attach to devices."""
