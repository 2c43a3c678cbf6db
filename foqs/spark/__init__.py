"""foqs from PySpark: `df.write.format("foqs")`. Needs the extra foqs[spark]; see docs/spark.md.

With foqs installed Spark finds the format by itself (the module pyspark_foqs). Nothing here imports pyspark or pyarrow
before it is used.
"""
