"""`Fleet`: a Meshfleet service over REST.

fleet           the service, all of it: what follows are its rooms
devices         fleet.devices
labels          fleet.labels
gateways        fleet.gateways
samples         fleet.samples
requests        fleet.requests
firmware        fleet.firmware; `uploads` and `downloads` are its files
jobs            fleet.jobs; `orders` tells what they are made of, `watching` follows them
people          fleet.users, fleet.api_keys, fleet.audit
live            fleet.live: events as they happen; `events` tells what they are
operations      fleet.operations

desk            asks as who we are
session         logging in, and staying in
transport       HTTP: one question, one answer
retries         whether and when to ask once more
problems        from an answer that is none to an error
calls           questions and answers as values
pages           lists, page by page
lines           streams, line by line
address         where a service is
"""
