"""What a model is: its shape, its weights, and the layout the kernels read."""
