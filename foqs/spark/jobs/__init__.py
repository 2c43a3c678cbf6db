"""Whole jobs, each a `foqs spark` command and a `main()` for spark-submit."""
