"""Export of all new samples to InfluxDB, or a server that accepts its line protocol."""
