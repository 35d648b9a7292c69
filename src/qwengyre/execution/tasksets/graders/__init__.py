"""Graders of the generated tasks: scripts that are copied into their tests/ folders, never imported."""
