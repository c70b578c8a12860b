"""What is computed about a model."""
