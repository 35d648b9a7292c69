"""Wire dialects, one file each: a protocol's requests to canonical ones, canonical answers to its responses."""
