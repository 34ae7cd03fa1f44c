"""Ways from q to the gradient of the policy."""
