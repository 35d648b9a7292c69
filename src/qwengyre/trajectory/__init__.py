"""The trajectory processor, pure: tree, roles, selection, credit, packing. No I/O, clock or torch.

Owns: what a token is worth. Never: where it came from or goes to. Read `tree.py` first, then `select.py`, `credit.py`.
"""
