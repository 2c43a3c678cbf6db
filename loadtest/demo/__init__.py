"""The queue at work on real records; `python -m loadtest.demo`, or `make demo`."""
