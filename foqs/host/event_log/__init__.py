"""The event log of a host: how the lives of items end, in files, and counts of it by the minute."""
