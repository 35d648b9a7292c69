"""Read-only views of a run folder: progress, metrics, inspection."""
