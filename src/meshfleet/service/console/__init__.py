"""Serves the browser console.

The sources are in `console/` beside `src`; they are built into `site/` when the package is installed.
"""
