"""Commands of `./faultline`."""
