"""Histories of calls, and the checker that holds them against the promises."""
