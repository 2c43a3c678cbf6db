"""Reports as pages: plain values in, HTML with plots out. Nothing here needs Spark or a network."""
