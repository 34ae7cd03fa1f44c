"""Settings of torch's devices for the whole process."""
