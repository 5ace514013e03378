"""The browser console as static files.

Its sources are in `console/` next to `src`; they are built into `site/` when the package is installed.
"""
