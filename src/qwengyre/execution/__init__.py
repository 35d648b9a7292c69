"""Executions: a harness in a sandbox, its frozen work, its score. No GPU, no tokens, no scheduling.

Read `runner.py` first (one execution from start to settlement), then `scoring.py`.
"""
