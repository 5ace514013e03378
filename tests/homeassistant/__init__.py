"""Tests with a real Home Assistant."""
