"""Counts words, and writes them as Parquet. It trains nothing and knows nothing of Muster."""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

spark = SparkSession.builder.appName("words").getOrCreate()
lines = spark.createDataFrame([("to be or not to be",), ("that is the question",)], ["line"])
words = lines.select(f.explode(f.split("line", " ")).alias("word")).groupBy("word").count()
# The storage of the job is a folder that all pods share.
words.write.mode("overwrite").parquet(os.path.join(os.environ.get("MUSTER_CHECKPOINT_DIR", ""), "words.parquet"))
print("the most frequent word is", words.orderBy(f.desc("count"), "word").first()["word"])
spark.stop()
