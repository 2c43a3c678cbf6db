"""A host beyond what it can do: overload, tenants over their quota, sick shards, and hours of load."""
