"""A private MySQL server for development and tests."""
