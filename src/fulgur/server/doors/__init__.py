"""One file a door: each turns its own requests into turns and completions, and their parts into its own answers."""
