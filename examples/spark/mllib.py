"""Logistic regression with MLlib on handwritten digits, saved and resumed in rounds of iterations."""

import json
import os

from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

import muster_training as muster

ROUNDS = int(os.environ.get("ROUNDS", "3"))

spark = SparkSession.builder.appName("mllib").getOrCreate()
images, labels = load_digits(return_X_y=True)
rows = [(float(label), Vectors.dense(image)) for image, label in zip((images / 16).tolist(), labels.tolist(), strict=True)]
data = spark.createDataFrame(rows, ["label", "features"]).repartition(2).cache()
evaluator = MulticlassClassificationEvaluator(metricName="accuracy")

found = muster.latest()
accuracies = json.loads((found / "accuracies.json").read_text()) if found else []
for number in range(len(accuracies) + 1, ROUNDS + 1):  # a stronger regularization in each round
    model = LogisticRegression(maxIter=20, regParam=0.001 * number, tol=1e-6).fit(data)
    accuracies.append(evaluator.evaluate(model.transform(data)))
    muster.report(step=number, total=ROUNDS, loss=model.summary.objectiveHistory[-1], accuracy=accuracies[-1])
    with muster.checkpoint(number) as folder:
        (folder / "accuracies.json").write_text(json.dumps(accuracies))
print("accuracies", accuracies)
spark.stop()
