"""Scripts that run inside a box with the standard library alone. Mounted there, never imported."""
