"""Commands that talk to a service, or straight to gateways: all of them on the SDK.

login, logout, stored_login, reaching            who we are, and where
devices, labels, gateways, samples, users, keys  the fleet
firmware, jobs, ordering, job_texts              updates
read, write, ack, apiversion, requests           what is asked of devices; `asking` and `answers` are theirs
watch, watching, heard                           reports as they come
arguments, completing, values, printing          how things are named, and shown
labelling                                        many devices at once
"""
