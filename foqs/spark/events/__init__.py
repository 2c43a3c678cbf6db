"""The event log of hosts in Spark: its files become Parquet, and Parquet becomes reports."""
