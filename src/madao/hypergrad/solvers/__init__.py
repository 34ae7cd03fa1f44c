"""Ways to solve H q = v, one a file."""
