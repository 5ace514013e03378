"""The console in the browser: what was built of it, and how it is served.

site       its files, in memory
serving    who gets which of them

The sources are in `console/` beside `src`; they are built into `site/` when the package is installed.
"""
