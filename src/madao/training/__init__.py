"""Training: the loop that brings data, a model, a policy and its outer steps together."""
