"""Every quality claim is one command here."""
