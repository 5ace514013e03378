"""From published reports to committed rows: nothing lost, nothing twice.

ingest ── one batch, one transaction; then what was learned goes on
  ├ reading ── sources ── subjects ── values    messages to a draft
  │     └ guests                                gateways on another broker
  ├ notes, rollups ── readings, facts           what is coalesced, and written every other second
  ├ rejects                                     what cannot be taken
  └ store                                       the tables
"""
