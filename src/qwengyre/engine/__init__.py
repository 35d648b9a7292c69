"""Engines: token ids in, token ids and log-probs out, over one HTTP shape. They decide nothing.

Owns: generation, KV, weight versions as the engine itself reports them. Read `base.py` first, then `server.py`.
"""
