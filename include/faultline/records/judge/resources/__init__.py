"""What the processes of a measured window used and lost of the machine."""
