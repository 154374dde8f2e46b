"""What can be run on the virtual GPU: scripts, functions, architectures, checkpoints."""
