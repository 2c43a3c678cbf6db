"""The figures of a host for operators: counters, gauges that are read at a scrape, and its condition for probes.

It changes nothing outside itself, and no verb imports it.
Begin with `scrape`, which has all metrics, then `meters` for the counters.
"""
