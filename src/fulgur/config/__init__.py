"""Configuration: Codex's key names, four layers, a strict schema, and a source for every effective key."""
