"""The PyTorch strategies."""
