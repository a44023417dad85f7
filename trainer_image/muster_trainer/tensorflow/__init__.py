"""The TensorFlow strategies."""
