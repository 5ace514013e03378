"""Export of all new samples to InfluxDB, or to another server that accepts InfluxDB line protocol."""
