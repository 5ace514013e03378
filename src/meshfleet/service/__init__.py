"""The service: REST interface, MQTT messaging and jobs on one database."""
