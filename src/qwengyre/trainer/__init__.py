"""Trainers: micro-steps in, one optimizer step out. They do not know what an advantage is.

Read `base.py` first, then `loss.py` (the one visible formula), then `torch.py`.
"""
