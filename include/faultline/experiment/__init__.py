"""What is measured: the configuration of one experiment, and matrices of them."""
