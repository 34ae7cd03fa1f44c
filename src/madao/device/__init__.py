"""Settings of torch's devices that hold for the whole process."""
