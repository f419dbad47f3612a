"""Every speed claim is one command here, measured with its peer in the same run."""
