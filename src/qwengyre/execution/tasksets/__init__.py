"""Task sets: where queries come from. Read `base.py` first."""
