"""Notifications: tell people and other systems about alarms, through webhooks, e-mail and MQTT.

- `planner` compares each changed alarm with what every channel was told, and writes messages.
- `routing` finds the channels of an alarm, and when they may be told.
- `composer` makes one message for people of several.
- `outbox` is the list of messages in the database: each is sent at least once, in order for each alarm.
- `notifier` runs all of this; `webhook`, `mail`, `mqtt_publisher` and `watchdog` deliver.
"""
