"""The real world: Ray actors, cells, boxes, the ledger, the journal of the run. Read `ray.py` and `control.py`."""
