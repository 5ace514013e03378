"""Samples as they are asked for: rows, sheets and series; and reports that could not be taken."""
