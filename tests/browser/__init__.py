"""Tests of the console in a real browser, served by the real program with its demo fleet."""
