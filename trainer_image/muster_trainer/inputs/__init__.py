"""Fetches the inputs of a job (`spec.inputs`): models and data sets of a Hugging Face hub or an S3 bucket."""
