"""Ray's access token, set before Ray is imported: it reads the mode once, at import."""

import os
import secrets


def protect(address: str) -> None:
    """A local Ray listens on all interfaces: only this run's random token opens it. A joined cluster brings its own
    (RAY_AUTH_MODE, RAY_AUTH_TOKEN)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local":
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
