"""Other ways to ask how much memory a model takes, on the same rows."""
