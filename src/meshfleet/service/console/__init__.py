"""Serves the browser console, a set of static files.

The sources of the console are in `console/` next to `src`; they are built into `site/` when the package is
installed.
"""
