"""Plans a new job: validation, target devices, eligibility, waves, dry run, and storage as a draft."""
