"""The gateway: the only thing a harness sees. HTTP in, exact token ids to the engine, everything journaled.

Owns: identity, rendering, matching, logical calls, the journal of calls. Never: routing decisions.
Read `app.py` first, then `calls.py`.
"""
