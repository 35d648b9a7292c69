"""The simulated world: the same scheduler in virtual time. Read `world.py`."""
