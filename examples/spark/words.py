"""Counts words, and writes them as Parquet. It trains nothing and knows nothing of Muster."""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

spark = SparkSession.builder.appName("words").getOrCreate()
lines = spark.createDataFrame([("to be or not to be",), ("that is the question",)], ["line"])
words = lines.select(f.explode(f.split("line", " ")).alias("word")).groupBy("word").count()
words.write.mode("overwrite").parquet(os.environ.get("OUTPUT", "words.parquet"))
print("the most frequent word is", words.orderBy(f.desc("count"), "word").first()["word"])
spark.stop()
