"""Firmware update jobs: planning, execution and views.

A job updates many devices. An execution is the part of a job that concerns one device.
"""
