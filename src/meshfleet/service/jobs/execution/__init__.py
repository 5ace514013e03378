"""Runs jobs on the database: reads, decides, writes, and only then sends.

runner       when what is done
stepping     jobs go on, dispatching: executions begin, ending_many: many end at once
advancing    executions go on with answers, reports and clocks
loading, moving    how executions are read, and how moves are written
outbox, post    requests on their way
uptime       what an outage of the service does to clocks
slots, lines, paces    what gateways are busy with, who is next, and how fast they are
"""
