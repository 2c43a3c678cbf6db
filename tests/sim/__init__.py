"""A whole host, its servers and its clients in one thread and in virtual time, repeatable by a seed.

The production code runs unchanged; what is simulated is the clock, the threads, the network and the database
(after FoundationDB's simulation and TigerBeetle's VOPR). `python -m tests.sim --seed N -v` replays a run.
"""
