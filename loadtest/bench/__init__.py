"""Speed on this machine, as ratios against plain SQL in the same run: `python -m loadtest.bench`."""
