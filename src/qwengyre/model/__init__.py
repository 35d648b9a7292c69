"""Models and tokenizers: the default one, the tiny one, any HF folder. Read `load.py`."""
