"""Backup and restore of all data of a service: database, samples and firmware images, in one file."""
