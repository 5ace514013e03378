"""Planning of new jobs: validation, target devices, eligibility, waves, dry run, and job drafts."""
