"""How many devices were online in each hour."""
