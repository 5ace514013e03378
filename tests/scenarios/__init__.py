"""Whole stories, with the service as the program that people run."""
