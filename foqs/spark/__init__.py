"""Bulk enqueues from PySpark: `df.write.format("foqs")`. It needs the extra foqs[spark]; see docs/spark.md.

Once foqs is installed, Spark finds the format by itself (the module pyspark_foqs). Nothing here imports pyspark or
pyarrow before it is used.
"""
