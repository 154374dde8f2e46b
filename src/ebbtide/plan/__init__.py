"""Choose what makes a training step fit: techniques, their cost, and the solver."""
