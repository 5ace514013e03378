"""Tests of the sources of the console, its build, and its packaging. Browser tests are in `tests.browser`."""
