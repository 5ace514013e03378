"""Watches: rules that look at stored facts now and then, one module for each part of the service."""
