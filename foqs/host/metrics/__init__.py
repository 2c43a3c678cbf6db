"""The figures of a host for operators: counters, gauges that are read at a scrape, and its condition for probes.

It changes nothing outside itself, and no verb imports it.
Begin with `gauges`, which has the metrics that are read as rows, then `meters` for the counters of events.
"""
