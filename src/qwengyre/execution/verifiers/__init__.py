"""Verifiers: grade a copy of the frozen work."""
