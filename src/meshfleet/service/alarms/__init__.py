"""Alarms: what needs attention, and why.

A *rule* says what is watched. A *condition* is the state of a rule for one subject, such as a gateway or a
device. An *alarm* is one cause, with all conditions that the cause explains as its members: only alarms are
listed, acknowledged and reported to people.

All state is in the database. An evaluation reads the history of connections where the last one ended, and
writes conditions, alarms, events and its progress in one transaction, so a crash neither loses nor repeats
anything.
"""
