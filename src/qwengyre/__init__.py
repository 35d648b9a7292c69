"""QwenGyre: online reinforcement learning of LLM agents on extreme-long-horizon tasks.

Read `loop.py` first: it is the whole story in a screenful.
"""

__version__ = "0.1.0"
