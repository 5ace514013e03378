"""Labels: strings that users attach to devices."""
