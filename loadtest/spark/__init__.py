"""The Spark pipeline at work: the demo of `make demo-spark` and the figure of `make bench-spark`."""
