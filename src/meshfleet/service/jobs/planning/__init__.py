"""Planning of a job: validation, targets, eligibility, waves, dry run, and the stored draft."""
