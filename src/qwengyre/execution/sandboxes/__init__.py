"""Sandboxes: where a harness and a verifier run. Read `base.py` first."""
