"""The terminal UI: finished rows go once into the terminal's own scrollback; the last few rows are a live area."""
