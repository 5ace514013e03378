"""Firmware: its records, its images, and how gateways get them.

store           the table of records
arriving        an image while it is uploaded
images          where images are kept: files beside SQLite, rows on PostgreSQL
form            what comes with an uploaded image
intake          takes uploads in, piece by piece
addresses       signed addresses, with which gateways get images
sending         an image as an answer, whole or a part
questions       answers gateways that ask for an image
figures         what it counts
routes          `/api/v1/firmware` and `/api/v1/images`
"""
