"""Making a job: the order is checked, its targets are found, sifted, put into waves, and written down."""
