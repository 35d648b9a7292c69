"""Harnesses: black boxes that only know a URL."""
