"""Everything that can go wrong on one host with several servers, by a seed."""
